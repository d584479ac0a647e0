//! The descriptors of the language: where each may stand and what it takes.

/// Where a descriptor stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorScope {
    Function,
    /// argument, element, field, return_value
    Value,
    Type,
    /// Behind `from` of a table.
    Table,
    /// In a `chain`.
    Chain,
    /// In a `state`.
    State,
    /// In an `outcome`.
    Outcome,
    /// In `varargs`.
    Varargs,
}

/// The block behind a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    Never,
    Possible,
    Always,
}

#[derive(Debug, Clone, Copy)]
pub struct Info {
    pub name: &'static str,
    pub scopes: &'static [DescriptorScope],
    /// Fewest and most arguments.
    pub arguments: (usize, usize),
    pub body: Body,
    /// How it is written, for messages.
    pub usage: &'static str,
}

const FUNCTION: &[DescriptorScope] = &[DescriptorScope::Function];
const VALUE: &[DescriptorScope] = &[DescriptorScope::Value, DescriptorScope::Type];
/// `sized`: of a struct that is passed in, and of a table.
const SIZED: &[DescriptorScope] = &[DescriptorScope::Value, DescriptorScope::Type, DescriptorScope::Table];
const TABLE: &[DescriptorScope] = &[DescriptorScope::Table];
const CHAIN: &[DescriptorScope] = &[DescriptorScope::Chain];
const STATE: &[DescriptorScope] = &[DescriptorScope::State];
const TYPE: &[DescriptorScope] = &[DescriptorScope::Type];
const CODE: &[DescriptorScope] = &[DescriptorScope::Function, DescriptorScope::Type];
/// Codes that an `outcome` has, too.
const REFUSAL: &[DescriptorScope] = &[DescriptorScope::Function, DescriptorScope::Type, DescriptorScope::Outcome];
const VARARGS: &[DescriptorScope] = &[DescriptorScope::Varargs];
const OUTCOME: &[DescriptorScope] = &[DescriptorScope::Function, DescriptorScope::Outcome];

const fn plain(name: &'static str, scopes: &'static [DescriptorScope]) -> Info {
    Info { name, scopes, arguments: (0, 0), body: Body::Never, usage: "" }
}

const fn with(
    name: &'static str,
    scopes: &'static [DescriptorScope],
    arguments: (usize, usize),
    usage: &'static str,
) -> Info {
    Info { name, scopes, arguments, body: Body::Never, usage }
}

const fn scope(
    name: &'static str,
    scopes: &'static [DescriptorScope],
    arguments: (usize, usize),
    usage: &'static str,
) -> Info {
    Info { name, scopes, arguments, body: Body::Always, usage }
}

pub const ALL: &[Info] = &[
    plain("sync", FUNCTION),
    plain("async", FUNCTION),
    with("success", CODE, (1, 1), "success(v)"),
    with("failure", REFUSAL, (1, 1), "failure(v)"),
    with("unsupported", REFUSAL, (0, 1), "unsupported(v)"),
    with("absent", CODE, (1, 1), "absent(v)"),
    with("lost", REFUSAL, (1, 1), "lost(v)"),
    with("fails", OUTCOME, (1, 2), "fails(condition) or fails(condition, v)"),
    with("local", FUNCTION, (1, 1), "local(e)"),
    with("cache", FUNCTION, (0, 2), "cache or cache(number, handle)"),
    with("unpack", FUNCTION, (0, 2), "unpack, unpack(size_member) or unpack(size_member, last_required_member)"),
    with("sets", FUNCTION, (1, usize::MAX), "sets(member, ...)"),
    plain("flush", FUNCTION),
    with("apart", FUNCTION, (2, usize::MAX), "apart(a, b, ...)"),
    scope(
        "varargs",
        FUNCTION,
        (1, 2),
        "varargs(request) { case K: T; ... } or varargs(request, list) { case K: T; ... }",
    ),
    Info { body: Body::Possible, ..with("case", VARARGS, (2, usize::MAX), "case K: T; or case K, L: T { ... }") },
    Info { body: Body::Possible, ..with("each", VARARGS, (1, 1), "each T; or each T { ... }") },
    with("require", FUNCTION, (2, 2), "require(e, v)"),
    with("address", FUNCTION, (1, 5), "address(e, value, ...)"),
    with("device_time", FUNCTION, (1, 1), "device_time(e)"),
    with("occupies", FUNCTION, (3, 4), "occupies(device, drain, name) or occupies(device, drain, name, begin)"),
    with("allocates_rc", FUNCTION, (2, 3), "allocates_rc(resource, amount) or allocates_rc(resource, amount, place)"),
    with(
        "deallocates_rc",
        FUNCTION,
        (2, 3),
        "deallocates_rc(resource, amount) or deallocates_rc(resource, amount, place)",
    ),
    with("consumes_rc", FUNCTION, (2, 2), "consumes_rc(resource, amount)"),
    with("register_buf", FUNCTION, (4, 4), "register_buf(registry, key, buffer, count)"),
    with("after", FUNCTION, (1, 1), "after(e)"),
    with("finally", FUNCTION, (1, 1), "finally(e)"),
    with("after_server", FUNCTION, (1, 1), "after_server(e)"),
    with("late", FUNCTION, (1, 1), "late(e)"),
    with("on_behalf_of", FUNCTION, (1, usize::MAX), "on_behalf_of(function, ...)"),
    scope("argument", FUNCTION, (1, 1), "argument(name) { ... }"),
    scope("return_value", FUNCTION, (0, 0), "return_value { ... }"),
    scope("element", VALUE, (0, 0), "element { ... }"),
    scope("field", VALUE, (1, 1), "field(name) { ... }"),
    with("sized", SIZED, (1, 2), "sized(member) or sized(member, last_required_member)"),
    Info {
        body: Body::Possible,
        ..with(
            "state",
            VALUE,
            (1, usize::MAX),
            "state(member, ...) or state(member, ...) { shows(part, ...); copies; }",
        )
    },
    with("shows", STATE, (1, usize::MAX), "shows(part, ...)"),
    plain("copies", STATE),
    with("cursor", VALUE, (1, 1), "cursor(remaining)"),
    with("history", VALUE, (1, 1), "history(n)"),
    with("scratch", VALUE, (1, 2), "scratch(n) or scratch(n, resource)"),
    plain("in", VALUE),
    plain("out", VALUE),
    with("buffer", VALUE, (1, 1), "buffer(n)"),
    with("returned", VALUE, (1, 1), "returned(n)"),
    plain("written", VALUE),
    with("rows", VALUE, (2, 2), "rows(n, pitch)"),
    with("planes", VALUE, (2, 2), "planes(n, step)"),
    plain("string", VALUE),
    with("null_terminated", VALUE, (0, 1), "null_terminated(step)"),
    with("type_cast", VALUE, (1, 1), "type_cast(type)"),
    plain("handle", VALUE),
    with("status_text", TYPE, (3, 3), "status_text(code, text, told)"),
    plain("status", TYPE),
    with("boxed", TYPE, (1, 1), "boxed(e)"),
    with("shaped", TYPE, (1, 1), "shaped(table)"),
    with("invalid", TYPE, (1, 1), "invalid(v)"),
    with("predefined", TYPE, (1, 1), "predefined(v)"),
    with("metadata", TYPE, (1, 1), "metadata(struct T)"),
    plain("allocate", VALUE),
    plain("deallocate", VALUE),
    with("ends_with", VALUE, (1, 1), "ends_with(object)"),
    with("tells", VALUE, (1, 1), "tells(f)"),
    with("refers", VALUE, (1, 1), "refers(place)"),
    with("refers_as", VALUE, (1, 1), "refers_as(object)"),
    with("through", VALUE, (1, 1), "through(v)"),
    plain("retain", VALUE),
    plain("release", VALUE),
    plain("no_copy", VALUE),
    plain("in_place", VALUE),
    with("aligned", VALUE, (1, 1), "aligned(n)"),
    plain("lifetime_call", VALUE),
    plain("lifetime_manual", VALUE),
    with("lifetime_coupled", VALUE, (1, 1), "lifetime_coupled(object)"),
    with("lifetime_until", VALUE, (2, 2), "lifetime_until(token, poll)"),
    with("owned", VALUE, (1, 1), "owned(object)"),
    with("owned_until", VALUE, (1, 1), "owned_until(function)"),
    with("freed_by", VALUE, (1, usize::MAX), "freed_by(function, ...)"),
    plain("frees", VALUE),
    with("bound", VALUE, (1, 1), "bound(object)"),
    with("resident", VALUE, (1, 1), "resident(bytes)"),
    plain("uses", VALUE),
    plain("uses_read", VALUE),
    with("shares", VALUE, (1, 2), "shares(object), shares(object, place) or shares(objects, count)"),
    plain("zerocopy", VALUE),
    with("mapped", VALUE, (1, 2), "mapped(n) or mapped(n, address)"),
    with("mapped_write", VALUE, (1, 1), "mapped_write(condition)"),
    with("mapped_read", VALUE, (1, 1), "mapped_read(condition)"),
    plain("unmap", VALUE),
    plain("opaque", VALUE),
    plain("device_address", VALUE),
    plain("token", VALUE),
    plain("null", VALUE),
    with("constant", VALUE, (1, usize::MAX), "constant(K, ...)"),
    with("within", VALUE, (1, 1), "within(argument)"),
    scope("callback", VALUE, (0, usize::MAX), "callback(parameters) { ... }"),
    plain("userdata", VALUE),
    with("given", VALUE, (1, 1), "given(argument)"),
    scope("chain", VALUE, (2, 2), "chain(type_member, next_member) { link(K, struct S); ... unknown(drop); }"),
    with("link", CHAIN, (2, 2), "link(K, struct S)"),
    with("unknown", CHAIN, (1, 1), "unknown(drop) or unknown(refuse)"),
    plain("once", VALUE),
    plain("posted", VALUE),
    plain("unless_lost", VALUE),
    with("held_by", VALUE, (2, 2), "held_by(hold, let_go)"),
    with("function_pointer", VALUE, (1, 1), "function_pointer(name)"),
    with("table", VALUE, (1, 1), "table(name)"),
    with("least", TABLE, (2, 2), "least(member, limit)"),
    with("longer", TABLE, (1, 1), "longer(slots)"),
    with("chained", TABLE, (3, usize::MAX), "chained(first, next, table, ...)"),
    with("obj_record", VALUE, (0, usize::MAX), "obj_record or obj_record(key, ...)"),
    with("session_record", FUNCTION, (0, usize::MAX), "session_record or session_record(key, ...)"),
    with("thread_record", FUNCTION, (0, usize::MAX), "thread_record or thread_record(key, ...)"),
    with("current_record", FUNCTION, (0, usize::MAX), "current_record or current_record(key, ...)"),
    with("same", FUNCTION, (1, 1), "same(e)"),
    with("stateless", FUNCTION, (0, 1), "stateless or stateless(object)"),
    plain("waits", FUNCTION),
    with("blocker", CODE, (1, 1), "blocker(\"why\")"),
    with("identity", TYPE, (1, 1), "identity(name)"),
    with("current", TYPE, (2, 2), "current(get, set)"),
    with("remade", TYPE, (3, 3), "remade(save, make, load)"),
    with("evictable", TYPE, (3, 4), "evictable(bytes, out, in[, device])"),
    with("dropped", TYPE, (1, 1), "dropped(release)"),
    with("obj_depends_on", VALUE, (1, 1), "obj_depends_on(object)"),
    with("obj_state_cbs", VALUE, (2, 2), "obj_state_cbs(write, read)"),
    with(
        "placeholder",
        &[DescriptorScope::Function, DescriptorScope::Value, DescriptorScope::Type],
        (1, 1),
        "placeholder(\"what is missing\")",
    ),
];

pub fn find(name: &str) -> Option<&'static Info> {
    ALL.iter().find(|d| d.name == name)
}
