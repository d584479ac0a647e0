use super::*;
use crate::{
    Assignment, FromServer, FunctionRule, MoveReport, OfferName, Preparation, ServerUser, SwapReport, ToServer,
    ToZygote, Wanted,
};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, send as send_bytes, socketpair};
use std::{fmt::Debug, os::fd::AsFd, path::PathBuf};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn offer() -> impl Strategy<Value = OfferName> {
    any::<(u64, [u64; 2])>().prop_map(|(session, secret)| OfferName { session, secret })
}

fn names() -> impl Strategy<Value = Option<Vec<String>>> {
    proptest::option::of(proptest::collection::vec(".{0,8}", 0..4))
}

fn user() -> impl Strategy<Value = ServerUser> {
    (any::<u32>(), any::<Vec<u32>>()).prop_map(|(id, groups)| ServerUser {
        id,
        groups,
        home: PathBuf::from("/h"),
        shared_memory: PathBuf::from("/s"),
        mounted: id % 2 == 0,
    })
}

fn assignment() -> impl Strategy<Value = Assignment> {
    let numbers = any::<(u64, u32, u32, Option<usize>, u64, Option<u64>)>();
    let flags = any::<(bool, bool, bool, bool)>();
    let texts = (".{0,16}", names(), names(), names());
    (numbers, flags, texts, proptest::option::of(user())).prop_map(|(numbers, flags, texts, user)| {
        let (session, guest, slot, threads, slice_ns, arena) = numbers;
        let (tenant, apis, allow, only_devices) = texts;
        let functions = FunctionRule { allow, deny: vec![tenant.clone()], privileged: vec![tenant.clone()] };
        let modules = vec![PathBuf::from(&tenant)];
        let limits = [(tenant.clone(), session)].into();
        let vendors = [(tenant.clone(), "lib".to_owned())].into();
        let (schedulable, private, own, in_vm) = flags;
        let shared = |name| crate::SharedDevice { name, memory: slice_ns };
        let shared_memory = only_devices.iter().flatten().cloned().map(shared).collect();
        let context = |name| crate::DeviceContext { name, bytes: slice_ns };
        let contexts = only_devices.iter().flatten().cloned().map(context).collect();
        Assignment {
            session,
            tenant,
            guest,
            modules,
            slot,
            limits,
            threads,
            apis,
            functions,
            only_devices,
            vendors,
            schedulable,
            swappable: own,
            shared_memory,
            contexts,
            slice_ns,
            private,
            own,
            in_vm,
            user,
            arena,
            movable: schedulable,
            move_every: arena,
            parked: private,
            rehearsal: own,
        }
    })
}

fn to_server() -> impl Strategy<Value = ToServer> {
    prop_oneof![
        assignment().prop_map(|assignment| ToServer::Assign(Box::new(assignment))),
        (any::<u64>(), any::<u64>(), offer()).prop_map(|(asker, request, name)| ToServer::Fetch(Wanted {
            asker,
            request,
            name
        })),
        any::<(u64, u64)>().prop_map(|(request, note)| ToServer::Fetched { request, note }),
        (any::<u64>(), ".{0,16}", any::<u64>()).prop_map(|(session, api, spec_hash)| {
            let modules = vec![PathBuf::from(&api)];
            let vendors = [(api.clone(), "lib".to_owned())].into();
            ToServer::Prepare(Preparation { session, modules, api, spec_hash, user: None, private: true, vendors })
        }),
    ]
}

fn to_zygote() -> impl Strategy<Value = ToZygote> {
    let modules = proptest::collection::vec(".{0,8}".prop_map(PathBuf::from), 0..3);
    let vendors = proptest::collection::btree_map(".{0,8}", ".{0,8}", 0..3);
    let preload = (modules, vendors).prop_map(|(modules, vendors)| ToZygote::Preload { modules, vendors });
    prop_oneof![preload, Just(ToZygote::Copy)]
}

fn from_server() -> impl Strategy<Value = FromServer> {
    prop_oneof![
        (any::<u64>(), ".{0,16}", any::<u64>()).prop_map(|(session, api, spec_hash)| FromServer::Started {
            session,
            api,
            spec_hash
        }),
        (any::<u64>(), ".{0,16}").prop_map(|(session, reason)| FromServer::Ended { session, reason }),
        (any::<u64>(), any::<u64>(), offer()).prop_map(|(session, request, name)| FromServer::Fetch {
            session,
            request,
            name
        }),
        any::<(u64, u64)>().prop_map(|(session, request)| FromServer::Card { session, request }),
        (any::<(u64, u64, u64)>(), ".{0,16}").prop_map(|((session, request, bytes), device)| FromServer::Move {
            session,
            report: MoveReport::Swap(SwapReport::Room { request, device, bytes })
        }),
        any::<u32>().prop_map(|pid| FromServer::Init { pid }),
        any::<u32>().prop_map(|pid| FromServer::Born { pid }),
        Just(FromServer::Ready),
        ".{0,16}".prop_map(|reason| FromServer::Unfit { reason }),
    ]
}

/// A message arrives as it was sent, with its descriptors, on every number of them that it may have.
fn travels<M: Message + Debug + PartialEq>(message: &M) {
    let (one, other) = pair();
    for count in message.descriptors() {
        let carried: Vec<_> = (0..count).map(|_| one.as_fd()).collect();
        send(one.as_fd(), message, &carried, Patience::None).unwrap();
        match receive::<M>(other.as_fd()) {
            Received::Message(same, descriptors) => {
                assert_eq!((&same, descriptors.len()), (message, count));
            }
            other => panic!("{other:?}"),
        }
    }
    let many: Vec<_> = (0..message.descriptors().end() + 1).map(|_| one.as_fd()).collect();
    assert!(send(one.as_fd(), message, &many, Patience::None).is_err());
}

/// The same of a message to the node, which has none.
fn is_heard<M: Message + Debug + PartialEq>(message: &M) {
    let (one, other) = pair();
    assert!(send(one.as_fd(), message, &[one.as_fd()], Patience::None).is_err());
    send(one.as_fd(), message, &[], Patience::None).unwrap();
    let heard = hear::<M>(other.as_fd());
    assert!(matches!(&heard, Heard::Message(same) if same == message), "{heard:?}");
    assert!(matches!(hear::<M>(other.as_fd()), Heard::Nothing));
}

/// No input makes a decoder panic, and what it takes for a message is one.
fn is_taken_for_one_or_refused<M: Message + Debug + PartialEq>(bytes: &[u8]) {
    for count in 0..=MAX_DESCRIPTORS {
        if let Ok(message) = decode::<M>(bytes, count) {
            assert_eq!(decode::<M>(&encode(&message).unwrap(), count).unwrap(), message);
        }
    }
}

proptest! {
    #[test]
    fn messages_arrive_as_they_were_sent(a in to_server(), b in to_zygote(), c in from_server()) {
        travels(&a);
        travels(&b);
        is_heard(&c);
    }

    #[test]
    fn any_bytes_are_a_message_or_garbage(
        message in from_server(),
        assigned in to_server(),
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
        noise in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        for mut bytes in [encode(&message).unwrap(), encode(&assigned).unwrap(), noise] {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            is_taken_for_one_or_refused::<FromServer>(&bytes);
            is_taken_for_one_or_refused::<ToServer>(&bytes);
            is_taken_for_one_or_refused::<ToZygote>(&bytes);
        }
    }
}

#[test]
fn another_version_is_told_apart_from_garbage() {
    let version = |text: &str| decode::<FromServer>(text.as_bytes(), 0).unwrap_err();
    for (other, form) in [(VERSION - 1, r#""ready""#), (VERSION + 1, r#"{"form":"another"}"#)] {
        assert!(matches!(version(&format!("[{other},{form}]")), Garbage::Version(told, VERSION) if told == other));
    }
    for form in ["", "{}", "[V]", r#"[V,"news"]"#, r#"[V,"ready",3]"#, r#"{"event":"ready"}"#, r#"[V,{"born":{}}]"#] {
        let text = form.replace('V', &VERSION.to_string());
        assert!(matches!(version(&text), Garbage::Text(_)), "{text}");
    }
    let deep = format!("[1,{}", "[".repeat(60_000));
    assert!(matches!(version(&deep), Garbage::Text(_)));
}

fn send_many(from: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    sendmsg(from, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
}

/// The node takes no descriptor, whatever it comes with: nothing of it is closed by this process, or was open in it.
#[test]
fn descriptors_stay_where_they_are() {
    let bytes =
        [encode(&FromServer::Ready).unwrap(), b"garbage".to_vec(), vec![b' '; MAX_MESSAGE_BYTES + 1], Vec::new()];
    for bytes in bytes {
        for count in [1, MAX_DESCRIPTORS + 1, 253] {
            let (one, other) = pair();
            let (reader, writer) = std::io::pipe().unwrap();
            send_many(&one, &bytes, &vec![writer.as_fd(); count]);
            drop(writer);
            for _ in 0..3 {
                let heard = hear::<FromServer>(other.as_fd());
                assert!(matches!(heard, Heard::Garbage(Garbage::Foreign)), "{heard:?}");
            }
            assert_eq!(rustix::io::ioctl_fionread(&reader), Ok(0));
            let hung_up = |reader: &std::io::PipeReader| {
                let mut polled = [rustix::event::PollFd::new(reader, rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut polled, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
                polled[0].revents().contains(rustix::event::PollFlags::HUP)
            };
            assert!(!hung_up(&reader), "{count} in flight");
            drop((one, other));
            assert!(hung_up(&reader));
        }
    }
}

#[test]
fn plain_bytes_of_a_stream_end_where_descriptors_begin() {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let mut bytes = [0; 64];
    let mut next = || receive_plain(other.as_fd(), &mut bytes).map(|(count, _)| bytes[..count].to_vec());
    assert_eq!(next(), Err(Errno::WOULDBLOCK));
    send_bytes(&one, b"away 7\n", SendFlags::NOSIGNAL).unwrap();
    send_bytes(&one, b"back\n", SendFlags::NOSIGNAL).unwrap();
    assert_eq!(next().unwrap(), b"away 7\nback\n");
    send_bytes(&one, b"plain", SendFlags::NOSIGNAL).unwrap();
    send_many(&one, b"x", &[one.as_fd()]);
    assert_eq!(next(), Err(Errno::BADMSG));
    assert_eq!(next(), Err(Errno::BADMSG), "it is as it was");
}

/// An offer reaches who has fetched it, and there is none where nobody has given it.
#[test]
fn offers_go_past_the_node() {
    let (from, to) = pair();
    assert!(crate::taken(to.as_fd()).is_none());
    let (reader, writer) = std::io::pipe().unwrap();
    crate::give(from.as_fd(), writer.as_fd(), 42).unwrap();
    drop(writer);
    let (given, note) = crate::taken(to.as_fd()).unwrap();
    assert_eq!(note, 42);
    rustix::io::write(&given, b"!").unwrap();
    assert_eq!(rustix::io::ioctl_fionread(&reader), Ok(1));
    drop(from);
    assert!(crate::taken(to.as_fd()).is_none());
}

#[test]
fn long_messages_are_neither_sent_nor_taken() {
    let (one, other) = pair();
    let message = FromServer::Unfit { reason: "x".repeat(MAX_MESSAGE_BYTES) };
    assert!(send(one.as_fd(), &message, &[], Patience::None).is_err());
    assert!(matches!(receive::<FromServer>(other.as_fd()), Received::Nothing));
    assert!(matches!(hear::<FromServer>(other.as_fd()), Heard::Nothing));
    for _ in 0..2 {
        send_bytes(&one, &vec![b' '; MAX_MESSAGE_BYTES + 1], SendFlags::NOSIGNAL).unwrap();
    }
    assert!(matches!(receive::<FromServer>(other.as_fd()), Received::Garbage(Garbage::Long)));
    assert!(matches!(hear::<FromServer>(other.as_fd()), Heard::Garbage(Garbage::Long)));
    drop(one);
    assert!(matches!(receive::<FromServer>(other.as_fd()), Received::Closed));
    assert!(matches!(hear::<FromServer>(other.as_fd()), Heard::Closed));
}

#[test]
fn the_node_waits_for_nobody() {
    let (one, _other) = pair();
    let message = ToServer::Fetched { request: 1, note: 2 };
    let full = (0..100_000).find(|_| send(one.as_fd(), &message, &[], Patience::None).is_err());
    assert!(full.is_some(), "the other end does not read");
}
