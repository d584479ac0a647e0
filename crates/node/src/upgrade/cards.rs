//! FPGA cards and the accelerators of VMs over an upgrade: their processes, sockets, clients and accounts stay.

use super::card_image::{
    CardImage, CardProcessImage, CardSessionImage, CardStateImage, CardsImage, FpgaDeviceImage, ListenerImage,
};
use super::inheritance::Inherited;
use super::save::{Bequest, accounts};
use crate::attach::listener::Listener;
use crate::cards::{Card, CardProcess, CardSession, CardState, Cards};
use crate::epoll::Token;
use crate::helpers::HelperProcess;
use crate::node::{Core, CoreState};
use crate::tenants::accounts::AssignedSlot;
use crate::vms::{FpgaDevice, FpgaDevices, ServedVmm};
use aviary_control::{Aside, Foreign};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::Instant,
};

pub fn save(state: &CoreState, bequest: &mut Bequest) -> io::Result<CardsImage> {
    let Cards { list, last, sessions, .. } = &state.cards;
    let list = list.iter().map(|(place, card)| self::card(*place, card, bequest)).collect::<io::Result<_>>()?;
    let session = |(number, session): (&u64, &CardSession)| CardSessionImage {
        number: *number,
        card: session.card,
        guest: session.guest,
        whose: session.whose.clone(),
        tenant: session.tenant.clone(),
        since: session.since,
        slot: session.seat.slot,
        figures: session.figures.clone(),
        moving: session.moving.clone(),
    };
    let devices = state.fpga_devices.list.iter();
    let devices = devices.map(|(place, device)| self::device(*place, device, bequest)).collect::<io::Result<_>>()?;
    Ok(CardsImage {
        list,
        last: *last,
        sessions: sessions.iter().map(session).collect(),
        accounts: accounts(&state.tenancy.card_accounts, bequest)?,
        devices,
        last_device: state.fpga_devices.last,
    })
}

fn listener(listener: &Listener, bequest: &mut Bequest) -> io::Result<ListenerImage> {
    Ok([bequest.add(&listener.socket)?, bequest.add(&listener.lock)?])
}

fn card(place: u64, card: &Card, bequest: &mut Bequest) -> io::Result<CardImage> {
    let mut process = |process: &CardProcess| {
        let CardProcess { helper, control } = process;
        Ok::<_, io::Error>(CardProcessImage {
            pid: helper.pid(),
            exit: bequest.add(&helper.exit)?,
            control: bequest.add(control)?,
        })
    };
    let state = match &card.state {
        CardState::Due(_) => CardStateImage::Due,
        CardState::Starting(starting) => CardStateImage::Starting(process(starting)?),
        CardState::Serving { process: serving, ports } => {
            CardStateImage::Serving(process(serving)?, ports.values().cloned().collect())
        }
        CardState::Failed => CardStateImage::Failed,
    };
    let listener = self::listener(&card.listener, bequest)?;
    Ok(CardImage { place, settings: card.settings.clone(), listener, state })
}

fn device(place: u64, device: &FpgaDevice, bequest: &mut Bequest) -> io::Result<FpgaDeviceImage> {
    let listener = device.listener.as_ref().map(|own| self::listener(own, bequest)).transpose()?;
    let served = match &device.served {
        Some(served) => Some((served.helper.pid(), bequest.add(&served.helper.exit)?, served.session)),
        None => None,
    };
    Ok(FpgaDeviceImage { place, settings: device.settings.clone(), listener, served })
}

fn listener_again(
    image: &ListenerImage,
    path: &Path,
    inherited: &mut Inherited,
    aside: &Aside,
) -> io::Result<Listener> {
    let [socket, lock] = *image;
    let mut listener = Listener::again(path, inherited.take(socket)?, File::from(inherited.take(lock)?));
    listener.guard(aside);
    Ok(listener)
}

impl Core {
    /// As they were; changes of the configuration come afterwards.
    pub(super) fn restore_cards(
        &self,
        state: &mut CoreState,
        image: &CardsImage,
        inherited: &mut Inherited,
    ) -> io::Result<()> {
        for (name, accounts) in &image.accounts {
            let restored = super::restore::tenant_page(accounts, inherited)?;
            state.tenancy.card_accounts.tenants.insert(name.clone(), restored);
        }
        for card in &image.list {
            let restored = self.card_again(card, inherited)?;
            state.cards.list.insert(card.place, restored);
        }
        state.cards.last = image.last;
        for one in &image.sessions {
            let session = CardSession {
                card: one.card,
                guest: one.guest,
                whose: one.whose.clone(),
                tenant: one.tenant.clone(),
                since: one.since,
                seat: AssignedSlot { tenant: one.tenant.clone(), slot: one.slot },
                figures: one.figures.clone(),
                moving: one.moving.clone(),
            };
            state.cards.sessions.insert(one.number, session);
        }
        state.fpga_devices = FpgaDevices { list: BTreeMap::new(), last: image.last_device };
        for one in &image.devices {
            let device = self.device_again(one, inherited)?;
            state.fpga_devices.list.insert(one.place, device);
        }
        Ok(())
    }

    fn watch_again(&self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        self.epoll.add(fd, token).map_err(io::Error::other)
    }

    fn card_again(&self, image: &CardImage, inherited: &mut Inherited) -> io::Result<Card> {
        let place = image.place;
        let listener = listener_again(&image.listener, &image.settings.socket, inherited, &self.aside)?;
        let party = format!("(card {})", image.settings.name).as_str().into();
        let mut process = |one: &CardProcessImage| {
            let control = Foreign::new(inherited.take(one.control)?, &self.aside, &party, "the socket of a card");
            let helper = HelperProcess::again(one.pid, inherited.take(one.exit)?);
            self.watch_again(helper.exit.as_fd(), Token::CardExit(place))?;
            self.watch_again(control.as_fd(), Token::CardControl(place))?;
            Ok::<_, io::Error>(CardProcess { helper, control })
        };
        let state = match &image.state {
            CardStateImage::Due => CardState::Due(Instant::now()),
            CardStateImage::Starting(starting) => CardState::Starting(process(starting)?),
            CardStateImage::Serving(serving, ports) => {
                let ports = ports.iter().map(|figures| (figures.port.clone(), figures.clone())).collect();
                CardState::Serving { process: process(serving)?, ports }
            }
            CardStateImage::Failed => CardState::Failed,
        };
        if matches!(state, CardState::Serving { .. } | CardState::Failed) {
            self.watch_again(listener.socket.as_fd(), Token::Card(place))?;
        }
        Ok(Card { settings: image.settings.clone(), listener, state })
    }

    fn device_again(&self, image: &FpgaDeviceImage, inherited: &mut Inherited) -> io::Result<FpgaDevice> {
        let listener = image.listener.as_ref();
        let listener = listener.map(|own| listener_again(own, &image.settings.socket, inherited, &self.aside));
        let served = match image.served {
            Some((pid, exit, session)) => {
                let helper = HelperProcess::again(pid, inherited.take(exit)?);
                self.watch_again(helper.exit.as_fd(), Token::FpgaDeviceExit(image.place))?;
                Some(ServedVmm { helper, session })
            }
            None => None,
        };
        let listen_at = served.is_none().then(Instant::now);
        Ok(FpgaDevice { settings: image.settings.clone(), listener: listener.transpose()?, served, listen_at })
    }
}
