"""TLS of a server, from files in PEM's form."""

import ssl

from lullm.errors import ConfigError
from lullm.server.options import ServerOptions

_MOST_BYTES = 1 << 20
"""Bound of a file with certificates and a key."""


def tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """The TLS context of a server's sockets; None: no TLS. TLS 1.2 is the oldest version.

    Raises:
        ConfigError: a file cannot be read or has another format, or the key does not match the certificate.
    """
    if options.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.VerifyMode(options.ssl_cert_reqs)
    key = options.ssl_keyfile or options.ssl_certfile
    try:
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile, password=_no_password)
    except OSError as error:  # SSLError is one
        reason = _reason(error)
        if options.ssl_keyfile is None and _is_certificate_alone(options.ssl_certfile):  # OpenSSL says 'PEM lib'
            reason = "there is no private key in it; give --ssl-keyfile"
        raise ConfigError(
            f"cannot listen with TLS, with the certificate {options.ssl_certfile} and the key {key}: {reason}"
        ) from None
    if options.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(options.ssl_ca_certs)
        except OSError as error:
            raise ConfigError(f"ssl_ca_certs {options.ssl_ca_certs}: {_reason(error)}") from None
    return context


def reload_tls(context: ssl.SSLContext, options: ServerOptions) -> None:
    """Have `context` use the files' present contents; open connections keep theirs. Raises as `tls_context` does.

    Handshakes use a new context from their first message on, because authorities cannot be removed from a context. The
    listening context keeps the certificate of the start, and never sends it.
    """
    fresh = tls_context(options)
    assert fresh is not None

    def move(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = fresh

    context.sni_callback = move


def _is_certificate_alone(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return False
    return b"BEGIN CERTIFICATE" in text and b"PRIVATE KEY" not in text


def _no_password() -> str:
    raise OSError("the key is encrypted; a server needs one without a passphrase (`openssl pkey -in KEY -out PLAIN`)")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        words = {"KEY_VALUES_MISMATCH": "the key is not that of the certificate"}
        return words.get(error.reason or "", f"not in PEM's form, or not what it should be ({error.reason or error})")
    return error.strerror or str(error)
