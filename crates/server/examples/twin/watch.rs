//! No system call of a borrowed context is made by its borrower: the kernel answers it with SIGSYS (system call user dispatch),
//! and the context continues in its own thread, which makes the call.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use aviary_delegate::Berth;
use aviary_delegate::door::Entered;

const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
/// Why SIGSYS came.
const SYS_USER_DISPATCH: c_int = 2;
/// Bytes of the instruction that has made a system call.
const SYSCALL_BYTES: i64 = 2;

/// What became of attempts, by [`Entered`].
static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

thread_local! {
    /// The berth of the lane whose context has these thread-locals, whichever thread runs it.
    static LANE: Cell<*const Berth> = const { Cell::new(std::ptr::null()) };
    /// Of a thread of the program.
    static WATCH: Watch = Watch::begin();
}

pub fn note_lane(berth: *const c_void) {
    LANE.set(berth.cast());
}

/// Continues in the berth's context, unless the kernel cannot watch for system calls.
pub fn enter(berth: &Berth) -> Entered {
    // A thread that ends has no watch any more.
    let entered = WATCH.try_with(|watch| watch.0.as_deref().map(|mark| berth.enter(mark)));
    let entered = entered.ok().flatten().unwrap_or(Entered::Refused);
    COUNTS[entered as usize].fetch_add(1, Ordering::Relaxed);
    entered
}

/// How many attempts returned, were handed over, and were refused.
pub fn counts() -> [u64; 3] {
    COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed))
}

/// The kernel looks at the byte for each system call of the thread: 1 has it answer with SIGSYS. `None`: it cannot.
struct Watch(Option<Box<AtomicU8>>);

impl Watch {
    fn begin() -> Watch {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(handle);
        // Threads of guest libraries handle no signals. This one is not the program's to block.
        // SAFETY: a set of this function.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut set, libc::SIGSYS);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
        let mark = Box::new(AtomicU8::new(0));
        // SAFETY: the kernel reads the byte, which lives until `drop` has turned this off.
        let begun = unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, mark.as_ptr()) };
        Watch((begun == 0).then_some(mark))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: changes how this thread's system calls are made.
        unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) };
    }
}

fn handle() {
    // SAFETY: the structure is filled in as far as it is looked at. On the stack of whoever is interrupted, and without blocking
    // anything: a borrower does not return from the handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_system_call as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
    }
}

/// In the borrowed context, which was about to make a system call. Its own thread returns from here, and makes it.
extern "C" fn on_system_call(_: c_int, info: *const libc::siginfo_t, context: *mut libc::ucontext_t) {
    let lane = LANE.get();
    // SAFETY: what the kernel passes to a handler of this kind.
    let (info, context) = unsafe { (&*info, &mut *context) };
    if info.si_code != SYS_USER_DISPATCH || lane.is_null() {
        return;
    }
    context.uc_mcontext.gregs[libc::REG_RIP as usize] -= SYSCALL_BYTES;
    // The signal mask and the alternative stack that the kernel has noted are the borrower's.
    context.uc_stack.ss_flags = libc::SS_DISABLE;
    // SAFETY: a set within the context. The lane's berth is there as long as its thread, whose thread-locals these are.
    unsafe {
        libc::sigfillset(&raw mut context.uc_sigmask);
        (*lane).hand_over();
    }
}
