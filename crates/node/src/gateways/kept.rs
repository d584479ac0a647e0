//! Gateways whose sessions go on in another node: those that give theirs up, and those that take one over.

use super::yielding::{KeptOrigin, Yielding};
use super::{Gateway, GatewayCommand, Gateways, Intent, Origin, Reach, spawn};
use crate::attach::guest::Guest;
use crate::error::NodeError;
use crate::helpers::HelperAccess;
use aviary_control::{Aside, Foreign};
use aviary_transport::send_greeting;
use aviary_wire::{Control, control::control_kind};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

impl Gateways {
    fn of_process(&mut self, pid: u32) -> Option<&mut Gateway> {
        self.list.values_mut().find(|gateway| gateway.child.id() == pid)
    }

    /// Whose session the gateway `pid` has. `None`: it has none, or is none.
    pub fn kept_origin(&mut self, pid: u32) -> Option<KeptOrigin> {
        let origin = self.of_process(pid)?.origin.clone().filter(|origin| origin.intent == Intent::New)?;
        let hex = |number: u128| format!("{number:032x}");
        Some(KeptOrigin { tenant: origin.tenant, process: hex(origin.process), session: hex(origin.session) })
    }

    /// Its session is to go on in another process. False: it hears nothing.
    pub fn hold(&mut self, pid: u32) -> bool {
        self.of_process(pid).is_some_and(|gateway| gateway.order(control_kind::GATEWAY_HOLD, &[]).is_ok())
    }

    /// Its API server stands: it writes its session to the file. False: it hears nothing.
    pub fn save(&mut self, pid: u32, file: BorrowedFd<'_>) -> bool {
        self.of_process(pid).is_some_and(|gateway| gateway.order(control_kind::GATEWAY_SAVE, &[file]).is_ok())
    }

    /// What it has said; `None`: it has ended.
    pub fn yielding(&mut self, pid: u32) -> Option<Yielding> {
        let gateway = self.of_process(pid)?;
        gateway.hear();
        Some(gateway.yielding.clone())
    }

    pub fn has_ended(&self, pid: u32) -> bool {
        !self.list.values().any(|gateway| gateway.child.id() == pid && gateway.lives())
    }

    /// Starts a gateway that goes on with a session. `image`: the file that an earlier one has left; `rest`: the socket in which
    /// it leaves what the API server needs; `first`: the gateway as which all of its process are served, if there is one already.
    pub fn start_kept(
        &mut self,
        command: &GatewayCommand,
        node: &HelperAccess,
        image: OwnedFd,
        (origin, first): (&KeptOrigin, Option<Guest>),
        rest: &Foreign,
        aside: &Aside,
    ) -> Result<(u64, Guest), NodeError> {
        let failed = |error: io::Error| NodeError::Spawn(command.program.clone(), error);
        let number = |text: &str| u128::from_str_radix(text, 16).map_err(|_| failed(io::ErrorKind::InvalidData.into()));
        let (process, session) = (number(&origin.process)?, number(&origin.session)?);
        let mut arguments = command.clone();
        arguments.arguments.push("--kept".into());
        let mut gateway = spawn(&arguments, node, image, aside).map_err(failed)?;
        let uid = node.user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let guest = Guest::of_child(gateway.child.id(), uid);
        gateway.origin = Some(Origin { tenant: origin.tenant.clone(), process, session, intent: Intent::New });
        (gateway.guest, gateway.reach) = (first.or(Some(guest)), Reach::Linked);
        let sent = gateway.order(control_kind::GATEWAY_REST, &[rest.as_fd()]);
        self.last += 1;
        self.list.insert(self.last, gateway);
        sent.map_err(failed)?;
        Ok((self.last, guest))
    }
}

impl Gateway {
    fn order(&self, kind: u32, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let order = Control { kind, ..Control::default() };
        send_greeting(&self.report, &order.to_bytes(), descriptors).map_err(io::Error::other)
    }
}
