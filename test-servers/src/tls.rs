//! Certificates for servers that speak TLS.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, Error, IsCa, KeyPair, KeyUsagePurpose};

use crate::port;

/// PEM texts: a certificate authority of its own, and what it vouches for.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Makes a certificate for one host name (or address), by an authority that vouches for nothing else.
pub(crate) fn identity(host: &str) -> Identity {
    make(host).unwrap_or_else(|error| panic!("no certificate can be made for {host:?}: {error}"))
}

fn make(host: &str) -> Result<Identity, Error> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // By its name, nobody takes it for another one.
    authority.distinguished_name.push(DnType::CommonName, format!("authority of a test {:016x}", port::random()));
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec![host.to_owned()])?.signed_by(&key, &authority)?;
    Ok(Identity { authority: authority.pem(), certificate: certificate.pem(), key: key.serialize_pem() })
}
