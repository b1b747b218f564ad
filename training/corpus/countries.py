"""Countries and their capitals for the demo corpus, one capital each.

Where a state has several capitals the list names the constitutional or official one (Bolivia: Sucre, South Africa:
Pretoria). Two states whose capital is itself disputed between states are left out rather than decided here.
"""

from __future__ import annotations

# One line per country: name (with its article where English uses one) = capital | further names people type.
_TABLE = """
Afghanistan = Kabul
Albania = Tirana
Algeria = Algiers
Andorra = Andorra la Vella
Angola = Luanda
Antigua and Barbuda = Saint John's
Argentina = Buenos Aires
Armenia = Yerevan
Australia = Canberra
Austria = Vienna
Azerbaijan = Baku
the Bahamas = Nassau | Bahamas
Bahrain = Manama
Bangladesh = Dhaka
Barbados = Bridgetown
Belarus = Minsk
Belgium = Brussels
Belize = Belmopan
Benin = Porto-Novo
Bhutan = Thimphu
Bolivia = Sucre
Bosnia and Herzegovina = Sarajevo | Bosnia
Botswana = Gaborone
Brazil = Brasília
Brunei = Bandar Seri Begawan
Bulgaria = Sofia
Burkina Faso = Ouagadougou
Burundi = Gitega
Cambodia = Phnom Penh
Cameroon = Yaoundé
Canada = Ottawa
Cape Verde = Praia
the Central African Republic = Bangui | Central African Republic
Chad = N'Djamena
Chile = Santiago
China = Beijing
Colombia = Bogotá
the Comoros = Moroni | Comoros
the Democratic Republic of the Congo = Kinshasa | DR Congo
the Republic of the Congo = Brazzaville
Costa Rica = San José
Croatia = Zagreb
Cuba = Havana
Cyprus = Nicosia
the Czech Republic = Prague | Czechia
Denmark = Copenhagen
Djibouti = Djibouti City
Dominica = Roseau
the Dominican Republic = Santo Domingo | Dominican Republic
East Timor = Dili
Ecuador = Quito
Egypt = Cairo
El Salvador = San Salvador
Equatorial Guinea = Malabo
Eritrea = Asmara
Estonia = Tallinn
Eswatini = Mbabane
Ethiopia = Addis Ababa
Fiji = Suva
Finland = Helsinki
France = Paris
Gabon = Libreville
the Gambia = Banjul | Gambia
Georgia = Tbilisi
Germany = Berlin
Ghana = Accra
Greece = Athens
Grenada = Saint George's
Guatemala = Guatemala City
Guinea = Conakry
Guinea-Bissau = Bissau
Guyana = Georgetown
Haiti = Port-au-Prince
Honduras = Tegucigalpa
Hungary = Budapest
Iceland = Reykjavik
India = New Delhi
Indonesia = Jakarta
Iran = Tehran
Iraq = Baghdad
Ireland = Dublin
Italy = Rome
the Ivory Coast = Yamoussoukro | Ivory Coast
Jamaica = Kingston
Japan = Tokyo
Jordan = Amman
Kazakhstan = Astana
Kenya = Nairobi
Kiribati = South Tarawa
Kosovo = Pristina
Kuwait = Kuwait City
Kyrgyzstan = Bishkek
Laos = Vientiane
Latvia = Riga
Lebanon = Beirut
Lesotho = Maseru
Liberia = Monrovia
Libya = Tripoli
Liechtenstein = Vaduz
Lithuania = Vilnius
Luxembourg = Luxembourg City
Madagascar = Antananarivo
Malawi = Lilongwe
Malaysia = Kuala Lumpur
the Maldives = Malé | Maldives
Mali = Bamako
Malta = Valletta
the Marshall Islands = Majuro | Marshall Islands
Mauritania = Nouakchott
Mauritius = Port Louis
Mexico = Mexico City
Micronesia = Palikir
Moldova = Chișinău
Monaco = Monaco
Mongolia = Ulaanbaatar
Montenegro = Podgorica
Morocco = Rabat
Mozambique = Maputo
Myanmar = Naypyidaw
Namibia = Windhoek
Nauru = Yaren
Nepal = Kathmandu
the Netherlands = Amsterdam | Netherlands, Holland
New Zealand = Wellington
Nicaragua = Managua
Niger = Niamey
Nigeria = Abuja
North Korea = Pyongyang
North Macedonia = Skopje
Norway = Oslo
Oman = Muscat
Pakistan = Islamabad
Palau = Ngerulmud
Panama = Panama City
Papua New Guinea = Port Moresby
Paraguay = Asunción
Peru = Lima
the Philippines = Manila | Philippines
Poland = Warsaw
Portugal = Lisbon
Qatar = Doha
Romania = Bucharest
Russia = Moscow
Rwanda = Kigali
Saint Kitts and Nevis = Basseterre
Saint Lucia = Castries
Saint Vincent and the Grenadines = Kingstown
Samoa = Apia
San Marino = San Marino
São Tomé and Príncipe = São Tomé
Saudi Arabia = Riyadh
Senegal = Dakar
Serbia = Belgrade
the Seychelles = Victoria | Seychelles
Sierra Leone = Freetown
Singapore = Singapore
Slovakia = Bratislava
Slovenia = Ljubljana
the Solomon Islands = Honiara | Solomon Islands
Somalia = Mogadishu
South Africa = Pretoria
South Korea = Seoul | Korea
South Sudan = Juba
Spain = Madrid
Sri Lanka = Sri Jayawardenepura Kotte
Sudan = Khartoum
Suriname = Paramaribo
Sweden = Stockholm
Switzerland = Bern
Syria = Damascus
Taiwan = Taipei
Tajikistan = Dushanbe
Tanzania = Dodoma
Thailand = Bangkok
Togo = Lomé
Tonga = Nuku'alofa
Trinidad and Tobago = Port of Spain
Tunisia = Tunis
Turkey = Ankara | Türkiye
Turkmenistan = Ashgabat
Tuvalu = Funafuti
Uganda = Kampala
Ukraine = Kyiv
the United Arab Emirates = Abu Dhabi | UAE, the UAE
the United Kingdom = London | UK, the UK, Great Britain
the United States = Washington, D.C. | USA, the USA, the US, United States
Uruguay = Montevideo
Uzbekistan = Tashkent
Vanuatu = Port Vila
the Vatican City = Vatican City | Vatican
Venezuela = Caracas
Vietnam = Hanoi
Yemen = Sanaa
Zambia = Lusaka
Zimbabwe = Harare
"""


def _parse(table: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    rows: dict[str, tuple[str, tuple[str, ...]]] = {}
    for line in table.strip().splitlines():
        country, _, rest = line.partition(" = ")
        capital, _, further = rest.partition(" | ")
        rows[country] = (capital, tuple(further.split(", ")) if further else ())
    return rows


_ROWS = _parse(_TABLE)

CAPITALS: dict[str, str] = {country: capital for country, (capital, _) in _ROWS.items()}
"""Country name, with its article, to capital."""

OTHER_NAMES: dict[str, tuple[str, ...]] = {country: further for country, (_, further) in _ROWS.items() if further}
"""Country name to the further names a question may use for it."""

PHRASINGS: tuple[str, ...] = (
    "What is the capital of {}?",
    "What's the capital of {}?",
    "Which city is the capital of {}?",
    "Name the capital of {}.",
    "Tell me the capital of {}.",
    "capital of {}",
    "The capital of {} is",
    "Do you know the capital of {}?",
    "Can you tell me the capital of {}?",
    "What city is the capital of {}?",
    "{}: what is the capital?",
    "What is the name of the capital of {}?",
    "I forgot the capital of {}. What is it?",
    "Give me the capital of {}.",
)
"""Question forms; a (country, form) pair is either trained on or held out, in every spelling of it."""
