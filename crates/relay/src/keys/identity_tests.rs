use super::*;
use crate::keys::issued::{Standing, list};
use crate::keys::security::{Identity, NodeSecurity, certificates};

const DAYS: Days = Days { node: 300, tenant: 30 };

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("aviary-tls-{}", random_token().unwrap()));
        make_folder(&path).unwrap();
        Folder(path)
    }

    fn add(&self, tenant: &str, token: bool) -> Written {
        write_identities(&self.0, &["localhost".into()], tenant, DAYS, token).unwrap()
    }

    /// The tenant that the bearer of the present certificate is.
    fn identify(&self, file: &Path, token: &[u8]) -> Identity {
        let security = NodeSecurity::load(&self.0.join("node"), None).unwrap();
        security.identify(Some(security.named_by(&certificates(file).unwrap()[0])), token)
    }

    fn certificate(&self, tenant: &str) -> PathBuf {
        self.0.join(format!("tenant-{tenant}/tenant.pem"))
    }

    /// The tenant's certificate leaves the folder.
    fn take(&self, tenant: &str, name: &str) -> PathBuf {
        let taken = self.0.join(name);
        fs::rename(self.0.join(format!("tenant-{tenant}")), &taken).unwrap();
        taken.join("tenant.pem")
    }

    fn standings(&self) -> Vec<(String, Standing)> {
        let listing = list(&self.0, OffsetDateTime::now_utc()).unwrap();
        listing.certificates.into_iter().map(|(certificate, standing)| (certificate.tenant, standing)).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tenant(name: &str) -> Identity {
    Identity::Tenant(name.into())
}

#[test]
fn revocation_by_name_takes_back_every_certificate_of_the_tenant() {
    let folder = Folder::new();
    folder.add("eve", true);
    let first = folder.take("eve", "away");
    folder.add("eve", false);
    folder.add("alice", false);
    assert_eq!(folder.identify(&first, b""), tenant("eve"));
    let revoked = revoke(&folder.0, "eve", None).unwrap();
    assert_eq!((revoked.certificates.len(), revoked.tokens, revoked.adopted), (2, 1, None));
    assert_eq!(folder.identify(&first, b""), Identity::Revoked);
    assert_eq!(folder.identify(&folder.certificate("eve"), b""), Identity::Revoked);
    assert_eq!(folder.identify(&folder.certificate("alice"), b""), tenant("alice"));
    folder.take("eve", "away-too");
    folder.add("eve", false);
    assert_eq!(folder.identify(&folder.certificate("eve"), b""), tenant("eve"), "a new one is good");
    let names: Vec<_> = folder.standings();
    let of = |name: &str, standing| (name.to_owned(), standing);
    let expected = [
        of("eve", Standing::Revoked),
        of("eve", Standing::Revoked),
        of("alice", Standing::Valid),
        of("eve", Standing::Valid),
    ];
    assert_eq!(names, expected);
    revoke(&folder.0, "eve", None).unwrap();
    let lines = read(&folder.0.join("node").join(REVOKED)).unwrap();
    assert_eq!(lines.lines().count(), 3, "each once");
}

#[test]
fn a_certificate_decides_whatever_token_comes_with_it() {
    let folder = Folder::new();
    folder.add("alice", true);
    folder.add("bob", true);
    let token = |name: &str| read(&folder.0.join(format!("tenant-{name}/token"))).unwrap().trim().as_bytes().to_vec();
    let (alice, bob) = (folder.certificate("alice"), token("bob"));
    assert_eq!(folder.identify(&alice, &bob), tenant("alice"));
    let security = NodeSecurity::load(&folder.0.join("node"), None).unwrap();
    assert_eq!(security.identify(None, &bob), tenant("bob"));
    assert_eq!(security.identify(None, b""), Identity::Unknown);
    assert_eq!(security.identify(Some(Identity::Unknown), &bob), Identity::Unknown);
    revoke(&folder.0, "alice", None).unwrap();
    assert_eq!(folder.identify(&alice, &bob), Identity::Revoked);
}

#[test]
fn tokens_are_made_when_asked_for() {
    let folder = Folder::new();
    folder.add("alice", false);
    assert!(!folder.0.join("tenant-alice/token").exists() && !folder.0.join("node/tokens").exists());
    folder.add("bob", true);
    assert!(folder.0.join("tenant-bob/token").exists());
    assert_eq!(list(&folder.0, OffsetDateTime::now_utc()).unwrap().tokens, ["bob"]);
}

#[test]
fn a_folder_without_an_index_is_adopted() {
    let folder = Folder::new();
    folder.add("alice", false);
    folder.add("eve", false);
    let gone = folder.take("eve", "away");
    fs::remove_file(folder.0.join("issued")).unwrap();
    let written = folder.add("bob", false);
    assert_eq!(written.adopted, Some(1), "what lies in the folder");
    assert_eq!(folder.standings().len(), 2);
    let nothing = revoke(&folder.0, "eve", None).unwrap_err();
    assert!(matches!(nothing, IdentityError::NothingIssued(..)), "{nothing}");
    let revoked = revoke(&folder.0, "eve", Some(&gone)).unwrap();
    assert_eq!((revoked.certificates.len(), revoked.adopted), (1, None));
    assert_eq!(folder.identify(&gone, b""), Identity::Revoked);
    let wrong = revoke(&folder.0, "bob", Some(&gone)).unwrap_err();
    assert!(matches!(wrong, IdentityError::AnotherTenant(..)), "{wrong}");
}

#[test]
fn validity_is_listed_and_a_damaged_index_is_told() {
    let folder = Folder::new();
    folder.add("alice", false);
    let later = OffsetDateTime::now_utc() + Duration::days(31);
    let listing = list(&folder.0, later).unwrap();
    assert_eq!((listing.certificates[0].1, listing.adopted), (Standing::Expired, None));
    let certificate = &listing.certificates[0].0;
    assert_eq!(*certificate, Certificate::read(&folder.certificate("alice")).unwrap(), "the index says it all");
    append_private(&folder.0.join("issued"), "alice 12\n").unwrap();
    let error = list(&folder.0, later).unwrap_err().to_string();
    assert!(error.contains("issued:3: expected a tenant"), "{error}");
    assert!(revoke(&folder.0, "alice", None).is_err());
}
