//! Keys and certificates for a node and its tenants: what `aviary tls init` writes and `aviary tls revoke` takes back.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aviary_wire::tenant::is_reserved;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use thiserror::Error;

use crate::security::{REVOKED, SecurityError, certificates, fingerprint_of};
use time::{Duration, OffsetDateTime};

/// A tenant's certificate carries its name as a host of this domain, which no node has.
pub(crate) const TENANT_DOMAIN: &str = ".tenant.aviary";
const CA_DAYS: i64 = 3650;
const MAX_NAME: usize = 40;

/// Why identities could not be written.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// `{0}` is no tenant's name: expected up to 40 of a-z, 0-9 and `-`
    #[error("`{0}` is no tenant's name: expected up to 40 of a-z, 0-9 and `-`")]
    Name(String),
    /// `{0}` is the name of a local user without a tenant: choose one that does not begin with `uid-`
    #[error("`{0}` is the name of a local user without a tenant: choose one that does not begin with `uid-`")]
    Reserved(String),
    /// {0}: {1}
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    /// {0} exists already; remove it first if it should be made anew
    #[error("{0} exists already; remove it first if it should be made anew")]
    Exists(PathBuf),
    /// {0} has no node's certificate: expected a folder that `aviary tls init` wrote
    #[error("{0} has no node's certificate: expected a folder that `aviary tls init` wrote")]
    NoNode(PathBuf),
    /// {0}
    #[error(transparent)]
    Unreadable(#[from] SecurityError),
    /// no certificate can be made: {0}
    #[error("no certificate can be made: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// What was written.
#[derive(Debug, Default)]
pub struct Written {
    /// For `aviary serve --tls-dir`; `None`: it was there already.
    pub node: Option<PathBuf>,
    /// For `aviary run --tls-dir`, on the tenant's machine.
    pub tenant: PathBuf,
}

/// Makes what is missing under `directory`: a CA, the node's certificate for these host names, and a new tenant.
pub fn write_identities(directory: &Path, names: &[String], tenant: &str, days: i64) -> Result<Written, IdentityError> {
    check_new_name(tenant)?;
    make_folder(directory)?;
    let authority = Authority::open(&directory.join("ca"))?;
    let mut written = Written { node: None, tenant: directory.join(format!("tenant-{tenant}")) };
    let node = directory.join("node");
    if !node.join("node.pem").exists() {
        make_folder(&node)?;
        authority.issue(&node, "node", names, "Aviary node", ExtendedKeyUsagePurpose::ServerAuth, days)?;
        written.node = Some(node.clone());
    }
    if written.tenant.join("tenant.pem").exists() {
        return Err(IdentityError::Exists(written.tenant));
    }
    make_folder(&written.tenant)?;
    let name = [format!("{tenant}{TENANT_DOMAIN}")];
    authority.issue(&written.tenant, "tenant", &name, tenant, ExtendedKeyUsagePurpose::ClientAuth, days)?;
    let token = random_token().map_err(|e| IdentityError::File("random numbers".into(), e))?;
    write_private(&written.tenant.join("token"), &format!("{token}\n"))?;
    append_private(&node.join("tokens"), &format!("{tenant} {token}\n"))?;
    Ok(written)
}

/// What exists already may have a reserved name, and can be revoked.
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

/// What was taken back.
#[derive(Debug)]
pub struct Revoked {
    /// The certificate's fingerprint (SHA-256, hexadecimal).
    pub fingerprint: String,
    /// How many tokens of the tenant.
    pub tokens: usize,
}

/// Takes a tenant's certificate back, `certificate` or else the one under `directory`, and its tokens. Holds for who
/// comes from now on.
pub fn revoke(directory: &Path, tenant: &str, certificate: Option<&Path>) -> Result<Revoked, IdentityError> {
    check_name(tenant)?;
    let node = directory.join("node");
    if !node.join("node.pem").exists() {
        return Err(IdentityError::NoNode(directory.to_owned()));
    }
    let usual = directory.join(format!("tenant-{tenant}")).join("tenant.pem");
    let certificates = certificates(certificate.unwrap_or(&usual))?;
    let fingerprint: String = fingerprint_of(&certificates[0]).iter().map(|byte| format!("{byte:02x}")).collect();
    let list = node.join(REVOKED);
    if !list.exists() || !read(&list)?.lines().any(|line| line.starts_with(&fingerprint)) {
        append_private(&list, &format!("{fingerprint} {tenant}\n"))?;
    }
    Ok(Revoked { fingerprint, tokens: remove_tokens(&node.join("tokens"), tenant)? })
}

/// Gateways read the file at any moment: it is replaced as a whole.
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
    /// The folder's CA; made if it is not there.
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
        let mut params = parameters(&[], "Aviary CA", CA_DAYS)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        write_private(&key_path, &key.serialize_pem())?;
        write_private(&path, &certificate)?;
        Ok(Authority { certificate, issuer: Issuer::new(params, key) })
    }

    /// Writes a certificate, its key and the CA's certificate.
    fn issue(
        &self,
        folder: &Path,
        file: &str,
        names: &[String],
        common: &str,
        usage: ExtendedKeyUsagePurpose,
        days: i64,
    ) -> Result<(), IdentityError> {
        let key = KeyPair::generate()?;
        let mut params = parameters(names, common, days)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        write_private(&folder.join(format!("{file}.key")), &key.serialize_pem())?;
        write_private(&folder.join(format!("{file}.pem")), &certificate.pem())?;
        write_private(&folder.join("ca.pem"), &self.certificate)
    }
}

fn parameters(names: &[String], common: &str, days: i64) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, common);
    let now = OffsetDateTime::now_utc();
    // Clocks differ a little; an end that has passed already is meant.
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

fn read(path: &Path) -> Result<String, IdentityError> {
    fs::read_to_string(path).map_err(|error| IdentityError::File(path.into(), error))
}

fn write_private(path: &Path, text: &str) -> Result<(), IdentityError> {
    let _ = fs::remove_file(path);
    append_private(path, text)
}

fn append_private(path: &Path, text: &str) -> Result<(), IdentityError> {
    let file = File::options().append(true).create(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| IdentityError::File(path.into(), error))
}
