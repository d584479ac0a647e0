//! Keys and certificates for a node and its tenants: made by `aviary tls init`, revoked by `aviary tls revoke`. Only these
//! commands call it, with files of the operator.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use aviary_wire::tenant::is_reserved;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::keys::fingerprint::fingerprint_of;
use crate::keys::folder::{
    IdentityError, IndexError, append_private, node_folder, read, revoked_fingerprints, write_private,
};
use crate::keys::issued::{Certificate, Index};
use crate::keys::security::{REVOKED, TENANT_DOMAIN};
use time::{Duration, OffsetDateTime};

const CA_DAYS: i64 = 3650;
const MAX_NAME: usize = 40;

/// The files that were written.
#[derive(Debug, Default)]
pub struct Written {
    /// The folder for `aviary serve --tls-dir`; `None`: it existed already.
    pub node: Option<PathBuf>,
    /// The folder for `aviary run --tls-dir` on the tenant's machine.
    pub tenant: PathBuf,
    /// There was no index of issued certificates: the number that was found in the folder. `None`: there was an index.
    pub adopted: Option<usize>,
}

/// Days for which certificates are valid.
#[derive(Debug, Clone, Copy)]
pub struct Days {
    pub node: i64,
    pub tenant: i64,
}

/// Makes what is missing under `directory`: a CA, the node's certificate for these host names, and a new tenant; with a
/// token if `token` is set.
pub fn write_identities(
    directory: &Path,
    names: &[String],
    tenant: &str,
    days: Days,
    token: bool,
) -> Result<Written, IdentityError> {
    check_new_name(tenant)?;
    make_folder(directory)?;
    let mut index = Index::open(directory)?;
    let authority = Authority::open(&directory.join("ca"))?;
    let folder = directory.join(format!("tenant-{tenant}"));
    let mut written = Written { node: None, tenant: folder, adopted: index.adopted };
    let node = node_folder(directory);
    if !node.join("node.pem").exists() {
        make_folder(&node)?;
        let issued = authority.issue(names, "Aviary node", ExtendedKeyUsagePurpose::ServerAuth, days.node)?;
        authority.write(&node, "node", &issued)?;
        written.node = Some(node.clone());
    }
    if written.tenant.join("tenant.pem").exists() {
        return Err(IdentityError::Exists(written.tenant));
    }
    make_folder(&written.tenant)?;
    let name = [format!("{tenant}{TENANT_DOMAIN}")];
    let issued = authority.issue(&name, tenant, ExtendedKeyUsagePurpose::ClientAuth, days.tenant)?;
    let of_tenant = Certificate::of(issued.certificate.der());
    index.add(of_tenant.ok_or_else(|| IndexError::NoTenant(written.tenant.clone()))?)?;
    authority.write(&written.tenant, "tenant", &issued)?;
    if token {
        let token = random_token().map_err(|e| IdentityError::File("random numbers".into(), e))?;
        write_private(&written.tenant.join("token"), &format!("{token}\n"))?;
        append_private(&node.join("tokens"), &format!("{tenant} {token}\n"))?;
    }
    Ok(written)
}

/// Makes a key and its certificate, which nobody has signed, in a folder for `aviary run --tls-dir`. Answers the SHA-256 of the
/// certificate: a grant can name it. The key stays where it is.
pub fn write_key(folder: &Path) -> Result<String, IdentityError> {
    if folder.join("tenant.pem").exists() || folder.join("tenant.key").exists() {
        return Err(IdentityError::Exists(folder.into()));
    }
    make_folder(folder)?;
    let key = KeyPair::generate()?;
    let mut params = certificate_parameters(&[], "Aviary guest", CA_DAYS)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.self_signed(&key)?;
    write_private(&folder.join("tenant.key"), &key.serialize_pem())?;
    write_private(&folder.join("tenant.pem"), &certificate.pem())?;
    Ok(fingerprint_of(certificate.der()).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Checks a name that may be revoked: older identities may have names that are reserved now.
fn check_new_name(tenant: &str) -> Result<(), IdentityError> {
    check_name(tenant)?;
    if is_reserved(tenant) { Err(IdentityError::Reserved(tenant.to_owned())) } else { Ok(()) }
}

fn check_name(tenant: &str) -> Result<(), IdentityError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if tenant.is_empty() || tenant.len() > MAX_NAME || !tenant.chars().all(plain) || tenant.starts_with('-') {
        return Err(IdentityError::Name(tenant.to_owned()));
    }
    Ok(())
}

/// The revoked credentials.
#[derive(Debug)]
pub struct Revoked {
    /// Fingerprints (SHA-256, hexadecimal) of all the tenant's certificates, including those revoked before.
    pub certificates: Vec<String>,
    /// The number of the tenant's tokens that were removed.
    pub tokens: usize,
    /// There was no index of issued certificates: the number that was found in the folder. `None`: there was an index.
    pub adopted: Option<usize>,
}

/// Revokes all certificates that were ever issued to a tenant, `certificate` in addition, and removes its tokens. Effective
/// for new connections.
pub fn revoke(directory: &Path, tenant: &str, certificate: Option<&Path>) -> Result<Revoked, IdentityError> {
    check_name(tenant)?;
    let node = node_folder(directory);
    if !node.join("node.pem").exists() {
        return Err(IdentityError::NoNode(directory.to_owned()));
    }
    let mut index = Index::open(directory)?;
    let usual = directory.join(format!("tenant-{tenant}")).join("tenant.pem");
    for path in [certificate, usual.exists().then_some(&*usual)].into_iter().flatten() {
        let found = Certificate::read(path)?;
        if found.tenant != tenant {
            return Err(IdentityError::AnotherTenant(path.into(), tenant.into(), found.tenant));
        }
        if !index.certificates.contains(&found) {
            index.add(found)?;
        }
    }
    let of_tenant = index.certificates.iter().filter(|certificate| certificate.tenant == tenant);
    let certificates: Vec<String> = of_tenant.map(|certificate| certificate.fingerprint.clone()).collect();
    let known = revoked_fingerprints(&node)?;
    let new = certificates.iter().filter(|fingerprint| !known.contains(fingerprint));
    append_private(&node.join(REVOKED), &new.map(|f| format!("{f} {tenant}\n")).collect::<String>())?;
    let tokens = remove_tokens(&node.join("tokens"), tenant)?;
    if certificates.is_empty() && tokens == 0 {
        return Err(IdentityError::NothingIssued(tenant.to_owned(), directory.to_owned()));
    }
    Ok(Revoked { certificates, tokens, adopted: index.adopted })
}

/// Replaces the file as a whole, because gateways may read it at any moment.
fn remove_tokens(path: &Path, tenant: &str) -> Result<usize, IdentityError> {
    if !path.exists() {
        return Ok(0);
    }
    let (gone, kept): (Vec<_>, Vec<_>) = read(path)?
        .lines()
        .map(str::to_owned)
        .partition(|line| line.split_once(' ').is_some_and(|(name, _)| name == tenant));
    if !gone.is_empty() {
        let new = path.with_extension("new");
        write_private(&new, &kept.iter().map(|line| format!("{line}\n")).collect::<String>())?;
        fs::rename(&new, path).map_err(|error| IdentityError::File(path.into(), error))?;
    }
    Ok(gone.len())
}

struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// The folder's CA, which is made if it does not exist.
    fn open(folder: &Path) -> Result<Self, IdentityError> {
        let (key_path, path) = (folder.join("ca.key"), folder.join("ca.pem"));
        if path.exists() {
            let key = KeyPair::from_pem(&read(&key_path)?)?;
            let certificate = read(&path)?;
            let issuer = Issuer::from_ca_cert_pem(&certificate, key)?;
            return Ok(Authority { certificate, issuer });
        }
        make_folder(folder)?;
        let key = KeyPair::generate()?;
        let mut params = certificate_parameters(&[], "Aviary CA", CA_DAYS)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        write_private(&key_path, &key.serialize_pem())?;
        write_private(&path, &certificate)?;
        Ok(Authority { certificate, issuer: Issuer::new(params, key) })
    }

    fn issue(
        &self,
        names: &[String],
        common: &str,
        usage: ExtendedKeyUsagePurpose,
        days: i64,
    ) -> Result<Issued, IdentityError> {
        let key = KeyPair::generate()?;
        let mut params = certificate_parameters(names, common, days)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        Ok(Issued { certificate: params.signed_by(&key, &self.issuer)?, key })
    }

    /// A certificate, its key and the CA's certificate.
    fn write(&self, folder: &Path, file: &str, issued: &Issued) -> Result<(), IdentityError> {
        write_private(&folder.join(format!("{file}.key")), &issued.key.serialize_pem())?;
        write_private(&folder.join(format!("{file}.pem")), &issued.certificate.pem())?;
        write_private(&folder.join("ca.pem"), &self.certificate)
    }
}

struct Issued {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

fn certificate_parameters(names: &[String], common: &str, days: i64) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, common);
    let now = OffsetDateTime::now_utc();
    // Valid from an hour ago, because clocks differ a little. With negative `days` the certificate has expired already.
    params.not_after = now + Duration::days(days);
    params.not_before = (now - Duration::hours(1)).min(params.not_after - Duration::hours(1));
    Ok(params)
}

fn random_token() -> io::Result<String> {
    let mut bytes = [0; 32];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn make_folder(folder: &Path) -> Result<(), IdentityError> {
    let made = DirBuilder::new().mode(0o700).recursive(true).create(folder);
    made.map_err(|error| IdentityError::File(folder.into(), error))
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
