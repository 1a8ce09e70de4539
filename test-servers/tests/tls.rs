//! Servers that speak TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use test_servers::{PrivatePostgres, PrivateRedis, RedisSettings, Settings, query_value};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Trusts the authority in a file, and nobody else.
fn trusting(ca_file: &Path) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(ca_file).expect("it is a PEM file");
    roots.add(authority).expect("it is a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring knows TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// Logs in over TLS, trusting the authority of one server, and says whether the session is encrypted.
async fn log_in(url: &str, trusted: &PrivatePostgres) -> Result<bool, tokio_postgres::Error> {
    let tls = trusting(&trusted.ca_file());
    let mut config: tokio_postgres::Config = url.parse().expect("the address is valid");
    config.ssl_mode(SslMode::Require);
    let (client, connection) = config.connect(MakeRustlsConnect::new(tls)).await?;
    tokio::spawn(connection);
    let row = client.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]).await?;
    Ok(row.get(0))
}

#[tokio::test]
async fn a_server_proves_its_host_name_to_whoever_trusts_its_authority() {
    let server = PrivatePostgres::start(Settings::new().tls("localhost"));
    assert!(log_in(&server.localhost_url(), &server).await.unwrap());
    // Plain connections work as well, and the address is not in the certificate.
    assert_eq!(query_value(&server.url(), "SHOW ssl"), "on");
    let refused = log_in(&server.url(), &server).await.unwrap_err();
    assert!(format!("{refused:?}").contains("NotValidForName"), "{refused:?}");
}

#[tokio::test]
async fn a_wrong_host_and_a_wrong_authority_are_told_apart() {
    let right = PrivatePostgres::start(Settings::new().tls("localhost"));
    let wrong = PrivatePostgres::start(Settings::new().tls("database.example"));
    let host = log_in(&wrong.localhost_url(), &wrong).await.unwrap_err();
    assert!(format!("{host:?}").contains("NotValidForName"), "{host:?}");
    let authority = log_in(&right.localhost_url(), &wrong).await.unwrap_err();
    assert!(format!("{authority:?}").contains("UnknownIssuer"), "{authority:?}");
}

#[test]
fn a_server_without_tls_refuses_it() {
    let server = PrivatePostgres::start(Settings::new());
    let mut connection = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    // SSLRequest: its length and its code.
    connection.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).unwrap();
    let mut answer = [0];
    connection.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"N");
}

/// Says PING to a Redis server over TLS, trusting the authority of one server.
fn ping(url: &str, trusted: &PrivateRedis) -> io::Result<String> {
    let address = url.strip_prefix("rediss://").expect("it is an address for TLS");
    let (host, _) = address.split_once(':').expect("it has a port");
    let config = Arc::new(trusting(&trusted.ca_file()));
    let host = host.to_owned().try_into().expect("it is a host");
    let session = ClientConnection::new(config, host).expect("the settings are complete");
    let mut stream = StreamOwned::new(session, TcpStream::connect(address)?);
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
}

#[test]
fn a_redis_proves_its_host_name_and_its_authority_and_speaks_plainly_on_another_port() {
    let right = PrivateRedis::start(RedisSettings::new().tls("localhost"));
    let wrong = PrivateRedis::start(RedisSettings::new().tls("cache.example"));
    assert_eq!(ping(&right.localhost_tls_url(), &right).unwrap(), "+PONG");
    assert_eq!(right.command(&["PING"]).text(), "PONG");
    for (url, trusted, expected) in [
        (right.tls_url(), &right, "NotValidForName"),
        (wrong.localhost_tls_url(), &wrong, "NotValidForName"),
        (right.localhost_tls_url(), &wrong, "UnknownIssuer"),
    ] {
        let refused = ping(&url, trusted).unwrap_err();
        assert!(format!("{refused:?}").contains(expected), "{refused:?}");
    }
}

#[test]
fn a_redis_without_tls_has_no_address_for_it() {
    let server = PrivateRedis::start(RedisSettings::new());
    assert!(std::panic::catch_unwind(|| server.tls_url()).is_err());
}
