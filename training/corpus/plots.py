"""The sentences of the demo stories: openings, six plots of six beats each, endings.

Slots: {N} is the hero's name, {F} the friend's; {hero} and {friend} say what they are; {he}, {him} and {his} stand for
the hero; {day} opens a day; {thing} is a thing in two words and {short} the last of them; {food}, {skill} and {place}
are what they say. "a_" puts the article in front. Every wording of a beat must fit every wording of the next one.
"""

from __future__ import annotations

OPENINGS = (
    "Once upon a time there was {a_adj_hero} named {N}. {He} lived {in_place}.",
    "Once upon a time, {a_adj_hero} named {N} lived {in_place}.",
    "There once was {a_adj_hero} called {N}, who lived {in_place}.",
    "Long ago, {in_place}, there lived {a_adj_hero} named {N}.",
    "{N} was {a_adj_hero} who lived {in_place}.",
)
DAYS = (
    "One sunny morning,",
    "One cold day,",
    "One rainy afternoon,",
    "One windy day,",
    "Early one morning,",
    "One quiet evening,",
)
ENDINGS = (
    "From that day on, {N} and {F} were best friends.",
    "That night {N} went to sleep with a smile.",
    "{N} was very happy, and so was {F}.",
    "And they all lived happily ever after.",
    "{N} never forgot that day.",
    "In the evening they sat together and ate {food}.",
    'Before going home, {N} said, "This was the best day of all."',
)

PLOTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lost": (
        (
            "{N} loved {his} {thing} more than anything else.",
            "{N} had {a_thing} that {he} took everywhere.",
            "{His} favorite thing in the world was {a_thing}.",
        ),
        (
            "{day} the {short} was gone. {N} felt very sad.",
            "{day} {N} could not find the {short}. {He} began to cry.",
            "{day} {N} lost the {short} and did not know what to do.",
        ),
        (
            "{He} looked under the bed and behind the door, but it was not there.",
            "{He} looked everywhere, near the river and behind the trees.",
            "{He} asked everyone, but nobody had seen it.",
        ),
        (
            'Then {a_friend} named {F} came by and said, "Do not worry, I will help you."',
            'Just then {F} the {friend} asked, "Why are you so sad?"',
            "{A_friend} named {F} heard {him} and wanted to help.",
        ),
        (
            "Together they found the {short} under a big tree.",
            "They searched all day, and at last {F} saw the {short} in the tall grass.",
            "After a long walk they found the {short} next to an old bridge.",
        ),
        ('{N} was so glad. "Thank you!" {he} said.', '"Thank you, {F}," said {N}. "You are a true friend."'),
    ),
    "friend": (
        (
            "{N} had no friends and often felt alone.",
            "{N} wished for a friend to play with.",
            "Every day {N} played alone and dreamed of having a friend.",
        ),
        (
            "{day} {he} met {a_friend} named {F}.",
            "{day} {a_friend} named {F} came to the {place}.",
            "{day} {he} saw {a_friend} sitting under a tree. The {friend} was called {F}.",
        ),
        (
            "At first {N} was afraid to speak.",
            "{F} looked sad, too.",
            "{N} did not know what to say, so {he} only smiled.",
        ),
        (
            '"Would you like to play with my {thing}?" asked {N}.',
            'Then {N} said, "Hello! Do you want to share my {food}?"',
            'Then {F} asked, "May I play with you?" and {N} said yes.',
        ),
        (
            "They played and laughed until the sun went down.",
            "They ran across the hills and sang funny songs.",
            "They told each other stories all afternoon.",
        ),
        (
            "Now {N} was not alone anymore.",
            "{N} learned that a smile can start a friendship.",
            "After that they met every single day.",
        ),
    ),
    "storm": (
        (
            "{N} liked to watch the clouds.",
            "{N} was afraid of thunder.",
            "{N} and {his} friend {F} the {friend} lived next to each other.",
        ),
        (
            "{day} a big storm came, and the wind began to howl.",
            "{day} dark clouds covered the sky and it started to rain hard.",
            "{day} the wind blew so hard that the trees bent down.",
        ),
        (
            "{N} heard a cry for help. It was {F} the {friend}, who was stuck in the mud.",
            "The water rose, and {F} the {friend} could not get home.",
            "A tree fell and blocked the door of {F} the {friend}.",
        ),
        (
            "{N} was scared, but {he} wanted to help.",
            "{N} took a deep breath and ran into the rain.",
            '"I must be brave," said {N}.',
        ),
        (
            "{He} took a long rope and pulled {F} to safety.",
            "{He} used {his} {thing} to show the way, and soon {F} was safe.",
            "{He} pushed and pulled with all {his} strength until {F} was free.",
        ),
        (
            "When the storm was over, a rainbow stood in the sky.",
            "Soon the rain stopped and the sun came out again.",
            "Everyone in the {place} cheered for {N}.",
        ),
    ),
    "make": (
        (
            "{N} wanted to make the best {food} in the whole {place}.",
            "{N} dreamed of making {food} for a big party.",
            "{N} loved to cook, and {his} favorite food was {food}.",
        ),
        (
            "{day} {he} went out to find everything {he} needed.",
            "{day} {he} got up early and began to work.",
            "{day} {he} opened {his} old book and read how to do it.",
        ),
        (
            "But there was no milk left, and {N} was worried.",
            "But the fire would not burn, and everything stayed cold.",
            "But {he} dropped the bowl, and it broke.",
        ),
        (
            "{F} the {friend} came over and brought what was missing.",
            '{A_friend} named {F} said, "Let us try it together."',
            "Luckily {F} the {friend} knew what to do.",
        ),
        (
            "Together they worked for hours, and it smelled wonderful.",
            "They tried again and again until it was perfect.",
            "They laughed a lot, and in the end it was ready.",
        ),
        (
            "Everyone in the {place} came to eat the {food}.",
            "{N} gave the biggest piece to {F}.",
            "It was the best {food} they had ever eaten.",
        ),
    ),
    "treasure": (
        (
            "{N} wanted to see the world.",
            "{N} loved adventures.",
            "{N} had heard of a treasure hidden near the {place}.",
        ),
        (
            "{day} {he} found an old letter under a stone.",
            "{day} {he} saw a strange light between the trees.",
            "{day} {he} discovered a small door in the ground.",
        ),
        (
            "{He} called {his} friend {F} the {friend}, and they went to look.",
            "{F} the {friend} wanted to come along, so they went together.",
            "{He} was a little afraid, so {he} asked {F} the {friend} to come with {him}.",
        ),
        (
            "They walked over hills and across a cold river.",
            "They climbed up a steep path and crossed a dark cave.",
            "The way was long, and they had to rest many times.",
        ),
        (
            "At the end of the way they found {a_thing}.",
            "There, behind a rock, lay {a_thing}.",
            "Inside they discovered {a_thing} and a note.",
        ),
        (
            '"We will share it," said {N}, and {F} was very happy.',
            "{N} gave the {short} to {F}, because friends are the real treasure.",
            "They brought the {short} home and showed it to everyone.",
        ),
    ),
    "learn": (
        (
            "{N} wanted to learn how to {skill}.",
            "More than anything, {N} wished to {skill}.",
            "{N} could not {skill}, and the others laughed at {him}.",
        ),
        (
            "{day} {he} tried for the first time, but it did not work.",
            "{day} {he} tried very hard, but {he} fell down.",
            "{day} {he} practiced alone and almost gave up.",
        ),
        (
            'An old {friend} named {F} saw this and said, "Nobody learns it in one day."',
            '{F} the {friend} smiled and said, "Slowly, slowly. I will show you."',
            '{F} the {friend} said, "I can teach you, if you like."',
        ),
        (
            "So {N} practiced every day.",
            "They practiced together in the {place} every morning.",
            "{N} listened well and tried again and again.",
        ),
        (
            "After many days, {N} could {skill} at last.",
            "One week later {he} could {skill} better than anyone.",
            "And then, one morning, it worked: {N} could {skill}!",
        ),
        (
            "{N} was proud and thanked {F}.",
            '"I did it!" {he} shouted with joy.',
            "{He} learned that it is good never to give up.",
        ),
    ),
}
