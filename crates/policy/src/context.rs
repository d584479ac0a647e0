//! The input of a policy's decision.

/// Number of different resources that one report can name.
pub const RESOURCES: usize = 8;

/// The command or report that a policy decides about; `__sk_buff` in a policy's source
/// (aviary_policy.h).
///
/// A program may read the first [`Context::VISIBLE`] bytes; the amounts are reached through a
/// helper.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The tenant's number, not 0: Figure 7 keeps its total under 0.
    pub tenant: u64,
    pub session: u64,
    pub device: u64,
    /// The tenant's weight; its share is the weight divided by the sum of all weights.
    pub weight: u64,
    pub priority: u64,
    /// The node's monotonic clock, in ns.
    pub now_ns: u64,
    /// Device time that the tenant has used so far, in ns.
    pub device_time_ns: u64,
    /// Time when the command at the head of the tenant's queue began to wait, in ns of the node's
    /// clock; 0 in reports.
    pub waiting_since_ns: u64,
    /// Expected device time of the command in ns; 0: unknown.
    pub expected_ns: u64,
    /// Commands waiting in the session's queue.
    pub queued: u64,
    pub amounts: Amounts,
}

/// One resource and its amount in a report; filled by [`Context::add`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts([(u64, u64); RESOURCES]);

impl Context {
    /// Bytes of the context that a program may read.
    pub(crate) const VISIBLE: usize = std::mem::offset_of!(Context, amounts);

    /// Adds an amount of a resource to the report; false: there is no room for another resource.
    pub fn add(&mut self, resource: u32, amount: u64) -> bool {
        let wanted = u64::from(resource);
        match self.amounts.0.iter_mut().find(|(id, _)| *id == wanted || *id == 0) {
            Some(entry) => {
                *entry = (wanted, entry.1.saturating_add(amount));
                true
            }
            None => false,
        }
    }

    /// The amount of a resource in this report; 0 if it is not named.
    pub(crate) fn amount(&self, resource: u64) -> u64 {
        // A program passes an `int`: the upper bits have no meaning.
        let wanted = resource & u64::from(u32::MAX);
        self.amounts.0.iter().find(|(id, _)| *id == wanted && wanted != 0).map_or(0, |(_, amount)| *amount)
    }

    /// The field at an offset of the visible part.
    pub(crate) fn word(&self, offset: usize) -> Option<u64> {
        let words = [
            self.tenant,
            self.session,
            self.device,
            self.weight,
            self.priority,
            self.now_ns,
            self.device_time_ns,
            self.waiting_since_ns,
            self.expected_ns,
            self.queued,
        ];
        words.get(offset / 8).copied()
    }
}

/// The number by which policies know a resource; `ava_get_rc_id` of aviary_policy.h computes it at
/// compile time. Only the first 32 bytes of a name count; never 0.
pub const fn resource_id(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut at = if bytes.len() < 32 { bytes.len() } else { 32 };
    let mut id = 0u32;
    // From the last byte to the first, so that the macro is a plain nest of products.
    while at > 0 {
        at -= 1;
        id = id.wrapping_mul(0x0100_0193).wrapping_add(bytes[at] as u32);
    }
    (id & 0x7fff_ffff) | 1
}
