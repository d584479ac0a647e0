//! The program that decides about each system call, as the kernel runs it.
//!
//! It is a chain of parts that were compiled one by one. A part decides some calls and leaves the others to the next one,
//! so that order says what precedes what: refusals, then the allow-list, then requests of `ioctl`.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

use super::lists::{Call, HUGE_PAGES, NEVER, REFUSED};
use super::requests::Requests;

/// cannot install the system call filter: {0}
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub struct FilterError(pub(crate) String);

pub(crate) fn failed(error: impl std::fmt::Display) -> FilterError {
    FilterError(error.to_string())
}

/// Calls that a process may make.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    pub calls: Vec<Call>,
    /// Requests of `ioctl`, which is one of `calls`.
    pub requests: Vec<Requests>,
}

/// Namespace flags of `clone`: a forked process gets none.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// Operations of `prctl`: names of threads and of memory, and what the C library asks.
const PRCTL: &[libc::c_int] = &[
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    PR_SET_VMA,
    libc::PR_GET_DUMPABLE,
    libc::PR_CAPBSET_READ,
    libc::PR_SET_PDEATHSIG,
];
const PR_SET_VMA: libc::c_int = 0x5356_4d41;

/// Stands for "the next part decides" in a part.
const NEXT: SeccompAction = SeccompAction::Trace(1);
/// Stands for "the listener is told, and decides".
const NOTIFY: SeccompAction = SeccompAction::Trace(2);

/// `BPF_RET | BPF_K` and `BPF_JMP | BPF_JA` of linux/bpf_common.h.
const RETURN: u16 = 0x06;
const JUMP: u16 = 0x05;

/// The calls that [`HUGE_PAGES`] stands for, and which argument has which flag then.
const HUGE: [(libc::c_long, u8, u64); 2] =
    [(libc::SYS_mmap, 3, libc::MAP_HUGETLB as u64), (libc::SYS_memfd_create, 1, libc::MFD_HUGETLB as u64)];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn condition(index: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, FilterError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value).map_err(failed)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, FilterError> {
    SeccompRule::new(conditions).map_err(failed)
}

/// All calls with these numbers, whatever their arguments are.
fn any(numbers: impl Iterator<Item = libc::c_long>) -> Rules {
    numbers.map(|number| (number, Vec::new())).collect()
}

/// One part: `matching` for calls that fit the rules, `otherwise` for the rest.
fn part(rules: Rules, matching: SeccompAction, otherwise: SeccompAction) -> Result<BpfProgram, FilterError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into().map_err(failed)?;
    SeccompFilter::new(rules, otherwise, matching, arch).map_err(failed)?.try_into().map_err(failed)
}

/// The parts behind each other. In all but the last one [`NEXT`] becomes a jump to the next part.
fn chain(parts: &[BpfProgram]) -> BpfProgram {
    let mut whole: BpfProgram = Vec::new();
    for part in parts {
        let length = part.len();
        for (at, instruction) in part.iter().enumerate() {
            let returns =
                |action: SeccompAction| *instruction == sock_filter { code: RETURN, jt: 0, jf: 0, k: action.into() };
            whole.push(if returns(NEXT) {
                // Relative to the instruction behind it; a part has at most 4096.
                sock_filter { code: JUMP, jt: 0, jf: 0, k: (length - at - 1) as u32 }
            } else if returns(NOTIFY) {
                sock_filter { k: libc::SECCOMP_RET_USER_NOTIF, ..instruction.clone() }
            } else {
                instruction.clone()
            });
        }
    }
    whole
}

/// Calls that fail with EPERM: all of [`NEVER`], and those of [`REFUSED`] that are not allowed; some with certain arguments only.
fn refusals(allowed: &Allowed) -> Result<Rules, FilterError> {
    let refused = REFUSED.iter().filter(|call| allowed.calls.iter().all(|other| other.number != call.number));
    let mut rules = any(NEVER.iter().chain(refused).map(|call| call.number));
    let network = condition(0, SeccompCmpOp::Ne, libc::AF_UNIX as u64)?;
    rules.entry(libc::SYS_socket).or_insert(vec![rule(vec![network])?]);
    let mut namespaces = Vec::new();
    for bit in (0..32).map(|bit| 1u64 << bit).filter(|bit| NEW_NAMESPACES & bit != 0) {
        namespaces.push(rule(vec![condition(0, SeccompCmpOp::MaskedEq(bit), bit)?])?);
    }
    rules.insert(libc::SYS_clone, namespaces);
    let other = PRCTL.iter().map(|operation| condition(0, SeccompCmpOp::Ne, *operation as u64));
    rules.insert(libc::SYS_prctl, vec![rule(other.collect::<Result<_, _>>()?)?]);
    if !allowed.calls.contains(&HUGE_PAGES) {
        for (number, argument, flag) in HUGE {
            rules.insert(number, vec![rule(vec![condition(argument, SeccompCmpOp::MaskedEq(flag), flag)?])?]);
        }
    }
    Ok(rules)
}

fn of_request(requests: Requests) -> Result<SeccompRule, FilterError> {
    match requests {
        Requests::Type(byte) => rule(vec![condition(1, SeccompCmpOp::MaskedEq(0xff00), u64::from(byte) << 8)?]),
        Requests::Numbers { first, last } => rule(vec![
            condition(1, SeccompCmpOp::Ge, u64::from(first))?,
            condition(1, SeccompCmpOp::Le, u64::from(last))?,
        ]),
    }
}

fn requests(allowed: &Allowed) -> Result<Rules, FilterError> {
    let rules = allowed.requests.iter().map(|requests| of_request(*requests)).collect::<Result<Vec<_>, _>>()?;
    Ok(if rules.is_empty() { Rules::new() } else { Rules::from([(libc::SYS_ioctl, rules)]) })
}

/// `clone3` passes its flags by address, out of a filter's sight. The C library falls back to `clone`.
fn unknown_to_the_c_library() -> Result<BpfProgram, FilterError> {
    part(any([libc::SYS_clone3].into_iter()), SeccompAction::Errno(libc::ENOSYS as u32), NEXT)
}

/// The parts from the refusals on: what is refused gets `refused`, a call in no list `unknown`.
fn decisions(
    allowed: &Allowed,
    refused: SeccompAction,
    unknown: SeccompAction,
) -> Result<Vec<BpfProgram>, FilterError> {
    let plain = any(allowed
        .calls
        .iter()
        .map(|call| call.number)
        .filter(|number| ![libc::SYS_ioctl, HUGE_PAGES.number].contains(number)));
    let mut parts = vec![
        unknown_to_the_c_library()?,
        part(refusals(allowed)?, refused.clone(), NEXT)?,
        part(plain, SeccompAction::Allow, NEXT)?,
    ];
    let requests = requests(allowed)?;
    if !requests.is_empty() {
        parts.push(part(requests, SeccompAction::Allow, NEXT)?);
    }
    let ioctl = any([libc::SYS_ioctl].into_iter());
    // Two equal answers are no filter to its compiler.
    parts.push(match refused == unknown {
        true => vec![sock_filter { code: RETURN, jt: 0, jf: 0, k: refused.into() }],
        false => part(ioctl, refused, unknown)?,
    });
    Ok(parts)
}

/// A refused call fails with EPERM; a call in no list raises SIGSYS.
pub fn enforcing(allowed: &Allowed) -> Result<BpfProgram, FilterError> {
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    Ok(chain(&decisions(allowed, refused, SeccompAction::Trap)?))
}

/// Any call but these ends the process.
pub fn only(calls: &[libc::c_long]) -> Result<BpfProgram, FilterError> {
    part(any(calls.iter().copied()), SeccompAction::Allow, SeccompAction::KillProcess)
}

/// Nothing is refused: the listener is told of what [`enforcing`] would not allow, and of `observed` calls in any case.
pub fn recording(allowed: &Allowed, observed: &[libc::c_long]) -> Result<BpfProgram, FilterError> {
    let mut parts = vec![part(any(observed.iter().copied()), NOTIFY, NEXT)?];
    parts.extend(decisions(allowed, NOTIFY, NOTIFY)?);
    Ok(chain(&parts))
}
