//! The users of API servers again, before the node that has taken the place of another one begins.

use super::{
    image::{FolderImage, UsersImage},
    inheritance::Inherited,
};
use crate::attach::private::PrivateDir;
use crate::users::claims::Claims;
use crate::users::homes::Homes;
use crate::users::server_users::{Ids, ServerUsers, UserRange};
use std::{fs::File, io, os::fd::RawFd};

/// The users of API servers.
pub fn users(image: &UsersImage, inherited: &mut Inherited) -> io::Result<ServerUsers> {
    let mut take = |number: &RawFd| inherited.take(*number).map(File::from);
    let claims = image.claims.as_ref().map(|held| held.iter().map(&mut take).collect::<io::Result<Vec<File>>>());
    let claims = claims.transpose()?;
    let ids = match image.range {
        Some(bounds) => {
            let claims = claims.map(|held| Claims { folder: crate::users::claims::FOLDER.into(), held });
            Ids::Range { range: UserRange::between(bounds), next: image.next, claims }
        }
        None => Ids::Shared(image.next),
    };
    let mut users = ServerUsers::within(
        ids,
        folder(&image.homes, inherited)?,
        image.shared_memory.as_ref().map(|memory| folder(memory, inherited)).transpose()?,
        Homes { limited: image.limits_homes, mounted: image.mounted.clone() },
    );
    (users.by_tenant, users.helpers) = (image.by_tenant.clone(), image.helpers.clone());
    users.free.clone_from(&image.free);
    Ok(users)
}

fn folder(image: &FolderImage, inherited: &mut Inherited) -> io::Result<PrivateDir> {
    Ok(PrivateDir { path: image.path.clone(), lock: inherited.take(image.lock)?.into() })
}
