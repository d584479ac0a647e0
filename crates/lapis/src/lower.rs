//! Lowering: a resolved function becomes one list of marshalling instructions.
//!
//! The list is the only thing the generators print. Each instruction describes
//! one value's whole journey: what the guest puts into the request, what the
//! server takes out of it, what the server puts into the reply and what the
//! guest takes out of that. Four printers walk the same list in the same order
//! (`generate::guest` and `generate::server`, each for request and reply), so a
//! `put` and its `get` cannot drift apart. Accounting is printed from the
//! charges beside the list, replay runs the server's printing unchanged.

mod expressions;
mod instructions;
mod overlaps;

pub use expressions::reads_memory;
pub use instructions::*;

use crate::model::*;
use crate::tools::coverage::blocker;
use expressions::{
    binary, collect_forced, for_each_expression, is_value, looked_into, parameters_of, request_expressions,
};

/// Lowers a whole API.
pub fn lower(model: &Model) -> Program {
    let mut callbacks = Vec::new();
    let functions = model.functions.iter().map(|f| Lowering::new(model, f, &mut callbacks).function()).collect();
    Program { functions, callbacks }
}

struct Lowering<'a> {
    model: &'a Model,
    function: &'a Function,
    callbacks: &'a mut Vec<LoweredCallback>,
    sites: usize,
    /// Parameters that server expressions look into after the call, and when.
    forced: Vec<(usize, Option<Expr>)>,
    /// Parameters that server expressions look into before or after the call.
    inspected: Vec<usize>,
    recorded: bool,
    carried: Vec<(Expr, Site)>,
}

impl<'a> Lowering<'a> {
    fn new(model: &'a Model, function: &'a Function, callbacks: &'a mut Vec<LoweredCallback>) -> Self {
        let mut forced = Vec::new();
        collect_forced(function, &mut forced);
        let mut inspected = Vec::new();
        for_each_expression(function, &mut |e| looked_into(model, e, &mut inspected));
        Lowering { model, function, callbacks, sites: 0, forced, inspected, recorded: false, carried: Vec::new() }
    }

    fn function(mut self) -> Lowered {
        let mut arguments = Vec::new();
        // Contextual values first: conditions and sizes may use them. Contextual buffers last.
        let (values, buffers): (Vec<usize>, Vec<usize>) =
            (0..self.function.contextual.len()).partition(|&i| is_value(&self.function.contextual[i]));
        for i in values {
            arguments.push(self.rule(&self.function.contextual[i].rule, ValueLocation::Contextual(i), 0));
        }
        for i in self.argument_order() {
            arguments.push(self.rule(&self.function.arguments[i], ValueLocation::Argument(i), 0));
        }
        for i in buffers {
            arguments.push(self.rule(&self.function.contextual[i].rule, ValueLocation::Contextual(i), 0));
        }
        let mut result = self.rule(&self.function.result, ValueLocation::Result, 0);
        if self.function.asynchronous.is_some() {
            arguments.iter_mut().for_each(|argument| mint_outputs(self.model, argument));
            // An object that reports is the library's: there is none yet.
            if !matches!(self.function.error, ErrorPlace::Status(_)) {
                mint(self.model, &mut result);
            }
        }
        let Function { records, same, .. } = self.function;
        let blocks = blocker(self.model, self.function).is_some();
        self.recorded |= !records.is_empty() || !same.is_empty() || blocks;
        let overlapping = Overlapping::of(self.function, &arguments);
        Lowered { arguments, result, recorded: self.recorded, carried: self.carried, overlapping }
    }

    /// Values before pointers, and a pointer after everything its expressions use.
    fn argument_order(&self) -> Vec<usize> {
        let count = self.function.arguments.len();
        let needs: Vec<Vec<usize>> = (0..count).map(|i| self.needs(i)).collect();
        let mut order: Vec<usize> = (0..count).filter(|&i| needs[i].is_empty()).collect();
        while order.len() < count {
            let next = (0..count).find(|i| !order.contains(i) && needs[*i].iter().all(|n| order.contains(n)));
            // A cycle has been refused by the front end; falling back to source order keeps this total.
            order.push(next.or_else(|| (0..count).find(|i| !order.contains(i))).unwrap_or(0));
        }
        order
    }

    fn needs(&self, argument: usize) -> Vec<usize> {
        let mut needs = Vec::new();
        request_expressions(&self.function.arguments[argument], &mut |e| parameters_of(e, &mut needs));
        for (_, condition) in self.forced.iter().filter(|(p, _)| *p == argument) {
            if let Some(c) = condition {
                parameters_of(c, &mut needs);
            }
        }
        needs.retain(|&n| n != argument);
        needs
    }

    fn site(&mut self, depth: usize, carried: bool) -> Site {
        self.sites += 1;
        Site { number: self.sites - 1, nested: depth > 0, carried }
    }

    fn rule(&mut self, rule: &Rule, at: ValueLocation, depth: usize) -> Instruction {
        match rule {
            Rule::If { condition, then, otherwise } => {
                let site = self.site(depth, self.carried(condition, at));
                if site.carried && !site.nested {
                    self.carried.push((condition.clone(), site));
                }
                let then = vec![self.rule(then, at, depth)];
                let otherwise = vec![self.rule(otherwise, at, depth)];
                let ty = then[0].ty.clone();
                let condition = condition.clone();
                Instruction { at, ty, operation: Operation::Choice { site, condition, then, otherwise } }
            }
            Rule::Plan(plan) => Instruction { at, ty: plan.ty.clone(), operation: self.operation(plan, at, depth) },
        }
    }

    fn operation(&mut self, plan: &Plan, at: ValueLocation, depth: usize) -> Operation {
        self.recorded |= matters_to_a_move(plan, at);
        match &plan.kind {
            Kind::Scalar | Kind::Number(_) => Operation::Scalar,
            Kind::Constant { values } => Operation::Constant { values: values.clone() },
            Kind::Within { argument } => Operation::Within { argument: *argument },
            Kind::Null | Kind::Unknown => Operation::Null { cleared: plan.output && !plan.input },
            Kind::Struct { fields, sized, state } => {
                Operation::Struct { fields: self.fields(fields, at, depth), sized: *sized, state: state.clone() }
            }
            Kind::Handle { handle, retain, release } => Operation::Handle(HandleUse {
                handle: *handle,
                minted: false,
                retain: *retain,
                release: *release,
                object: plan.object.clone(),
            }),
            Kind::Buffer(buffer) => self.buffer(plan, buffer, at, depth),
            Kind::String => Operation::Text { output: plan.output, lifetime: plan.lifetime.clone() },
            Kind::Frees => Operation::Frees,
            Kind::Resident { bytes } => match &plan.lifetime {
                Lifetime::Owned(owner) => Operation::Resident { bytes: bytes.clone(), owner: owner.clone() },
                // `check` refuses it.
                _ => Operation::Null { cleared: true },
            },
            Kind::Callback(callback) => self.callback(callback, at),
            Kind::Userdata => Operation::Userdata,
            Kind::Given { argument, .. } => Operation::Given { place: argument.unwrap_or(0) },
            Kind::Chain(chain) => Operation::Chain((**chain).clone()),
            Kind::Zerocopy { count } => Operation::Zerocopy { bytes: count.clone() },
            Kind::Mapped(mapped) => Operation::Mapped {
                mapped: (**mapped).clone(),
                until: match &plan.lifetime {
                    Lifetime::Until { token, poll } => Some((token.clone(), *poll)),
                    _ => None,
                },
            },
            Kind::Unmap => Operation::Unmap,
            Kind::FunctionPointer { name } => Operation::FunctionPointer { name: name.clone() },
            Kind::Table(table) => Operation::Table(*table),
            Kind::Nothing => Operation::Nothing,
        }
    }

    fn fields(&mut self, fields: &[(Field, Rule)], at: ValueLocation, depth: usize) -> Vec<Instruction> {
        let place = |field: &Field| match at {
            ValueLocation::Element { depth, offset } => ValueLocation::Element { depth, offset: offset + field.offset },
            // A struct passed by value is worked on in memory, as the element of a loop of one.
            _ => ValueLocation::Element { depth, offset: field.offset },
        };
        fields.iter().map(|(field, rule)| self.rule(rule, place(field), depth.max(1))).collect()
    }

    /// How many elements a buffer has, and where that is decided.
    fn extent(&mut self, buffer: &Buffer, at: ValueLocation, depth: usize) -> Extent {
        let carried = match &buffer.count {
            Count::One => false,
            Count::Elements(e) => self.carried(e, at),
            Count::Terminated { .. } => true,
        };
        Extent {
            site: self.site(depth, carried),
            count: buffer.count.clone(),
            stride: buffer.element_type.size(),
            forced: self.forced_when(at),
        }
    }

    fn buffer(&mut self, plan: &Plan, buffer: &Buffer, at: ValueLocation, depth: usize) -> Operation {
        if buffer.zerocopy {
            let bytes = match &buffer.count {
                Count::Elements(e) => Some(e.clone()),
                _ => None,
            };
            return Operation::Zerocopy { bytes };
        }
        let extent = self.extent(buffer, at, depth);
        let loop_depth = match at {
            ValueLocation::Element { depth, .. } => depth + 1,
            _ => 0,
        };
        let element = self.rule(&buffer.element, ValueLocation::Element { depth: loop_depth, offset: 0 }, depth + 1);
        if matches!(element.operation, Operation::Scalar) {
            // Buffers behind pointers are what libraries parse (program binaries): the guest must not
            // be able to change them under the parser. Plain data may stay where it is.
            let private = match at {
                ValueLocation::Argument(i) => self.inspected.contains(&i),
                _ => true,
            };
            let cursor = buffer.way == BufferWay::Cursor;
            return Operation::Bytes(Bytes {
                extent,
                mode: self.mode(plan, buffer, at),
                returned: buffer.returned.clone(),
                answer: self.is_answer(plan, buffer, at),
                written: self.written(buffer),
                rows: buffer.rows.clone(),
                // The data under a cursor may be large, and is where it is meant to be read.
                private: private && !cursor && !buffer.in_place,
                cursor,
                history: buffer.history * buffer.element_type.size(),
                align: buffer.align,
                lifetime: plan.lifetime.clone(),
            });
        }
        let mut element = element;
        if buffer.way == BufferWay::Resting || plan.object.allocate {
            rest(&mut element, plan.object.allocate);
        }
        Operation::Elements(Elements {
            extent,
            input: plan.input || !plan.output,
            output: plan.output,
            returned: buffer.returned.clone(),
            element: vec![element],
            element_type: buffer.element_type.clone(),
            makes: plan.object.allocate,
            ends: plan.object.deallocate,
            lifetime: plan.lifetime.clone(),
        })
    }

    /// Bytes of a type that no declaration names, because it depends on what is asked: a `void *` of which the call says
    /// how much is meaningful, in a function with a small number that is no part of its size.
    fn is_answer(&self, plan: &Plan, buffer: &Buffer, at: ValueLocation) -> bool {
        let (ValueLocation::Argument(own), Count::Elements(count)) = (at, &buffer.count) else { return false };
        let TypeKind::Pointer { to, .. } = &plan.ty.kind else { return false };
        let mut sizes = Vec::new();
        parameters_of(count, &mut sizes);
        let selects = |(n, ty): (usize, &Type)| {
            n != own && !sizes.contains(&n) && matches!(ty.kind, TypeKind::Int { bytes, .. } if bytes <= 4)
        };
        let untyped = matches!(to.kind, TypeKind::Void) && plan.output && !plan.input && buffer.returned.is_some();
        untyped && self.function.signature.parameters.iter().map(|(_, ty)| ty).enumerate().any(selects)
    }

    /// True if nothing needs to be known of what an output held before.
    fn written(&self, buffer: &Buffer) -> bool {
        // A pure query's answer is a number, or none; a remembered one says nothing of what the library left alone.
        let answer = matches!(buffer.count, Count::One) && (self.function.cache || self.function.cache_if.is_some());
        buffer.written || buffer.returned.is_some() || buffer.way == BufferWay::Cursor || answer
    }

    fn mode(&self, plan: &Plan, buffer: &Buffer, at: ValueLocation) -> Mode {
        let contextual =
            matches!(at, ValueLocation::Contextual(_) | ValueLocation::Element { .. }) && plan.object.deallocate;
        match &plan.lifetime {
            _ if buffer.way == BufferWay::Scratch => Mode::Scratch { resource: buffer.scratch_resource },
            Lifetime::Until { token, poll } => {
                Mode::Until { input: plan.input, output: plan.output, token: token.clone(), poll: *poll }
            }
            _ if contextual || (plan.object.deallocate && !plan.object.allocate) => {
                Mode::ShadowBack { end: plan.object.deallocate }
            }
            Lifetime::Manual => Mode::Shadow { input: plan.input && !buffer.no_copy, coupled: None },
            Lifetime::Coupled(e) => Mode::Shadow { input: plan.input && !buffer.no_copy, coupled: Some(e.clone()) },
            Lifetime::Bound(object) => Mode::Bound { object: object.clone() },
            _ if buffer.no_copy => Mode::Room,
            // Behind what the library hands out.
            _ => Mode::Copy { input: plan.input, output: plan.output },
        }
    }

    fn forced_when(&self, at: ValueLocation) -> When {
        let ValueLocation::Argument(i) = at else { return When::Never };
        let mut conditions = Vec::new();
        for (parameter, condition) in &self.forced {
            match condition {
                _ if *parameter != i => {}
                None => return When::Always,
                Some(c) => conditions.push(c.clone()),
            }
        }
        match conditions.into_iter().reduce(|a, b| binary(Binary::LogicalOr, a, b)) {
            Some(c) => When::If(c),
            None => When::Never,
        }
    }

    fn callback(&mut self, callback: &Callback, at: ValueLocation) -> Operation {
        // The objects that a callback tells of are no part of the call that registers it.
        let recorded = self.recorded;
        let mut arguments = Vec::new();
        for (i, rule) in callback.arguments.iter().enumerate() {
            arguments.push(self.rule(rule, ValueLocation::Argument(i), 0));
        }
        // Sizes use plain values of the same callback: those first.
        arguments.sort_by_key(|a| !matches!(a.operation, Operation::Scalar | Operation::Handle(_)));
        let result = self.rule(&callback.result, ValueLocation::Result, 0);
        self.recorded = recorded;
        let mut gives = Vec::new();
        for argument in &mut arguments {
            if let Operation::Given { place } = &mut argument.operation {
                gives.push(std::mem::replace(place, gives.len()));
            }
        }
        let keeps = self.kept_for(callback, &arguments, at);
        self.callbacks.push(LoweredCallback {
            callback: callback.clone(),
            arguments,
            result,
            hands_back: keeps.map(|kept| kept.handle),
        });
        Operation::Callback {
            kind: self.callbacks.len() - 1,
            once: callback.once,
            userdata: callback.userdata_argument,
            keeps,
            gives,
        }
    }

    /// The handle argument of the function that a callback, called at most once, will hand back: the first one before
    /// the callback that has the type of the callback's first handle.
    fn kept_for(&self, callback: &Callback, arguments: &[Instruction], at: ValueLocation) -> Option<KeptHandle> {
        let ValueLocation::Argument(own) = at else { return None };
        let handed_back = arguments.iter().find_map(|argument| match &argument.operation {
            Operation::Handle(h) => Some(h.handle),
            _ => None,
        });
        let handle = handed_back.filter(|_| callback.once)?;
        let is_it = |rule: &Rule| matches!(rule, Rule::Plan(plan) if matches!(plan.kind, Kind::Handle { handle: h, .. } if h == handle));
        let argument = self.function.arguments.iter().take(own).position(is_it)?;
        Some(KeptHandle { argument, handle, held_by: callback.held_by })
    }

    /// True if the value of `e`, needed to take the value `at` out of the request, must travel.
    fn carried(&self, e: &Expr, at: ValueLocation) -> bool {
        let mut used = Vec::new();
        parameters_of(e, &mut used);
        // A parameter cannot tell its own shape before it has arrived.
        self.only_in_guest(e) || matches!(at, ValueLocation::Argument(i) if used.contains(&i))
    }

    /// True if only the guest can evaluate `e` before the call.
    fn only_in_guest(&self, e: &Expr) -> bool {
        let mut guest = false;
        e.walk(&mut |e| {
            guest |= match &e.kind {
                ExprKind::Contextual(i) => !is_value(&self.function.contextual[*i]),
                ExprKind::Table(_) => true,
                ExprKind::Call(Callee::Utility(u), _) => self.model.utility_functions[*u].side == Side::Guest,
                ExprKind::Call(callee, _) => {
                    !matches!(callee, Callee::Min | Callee::Max | Callee::Strlen | Callee::Present | Callee::Span)
                }
                // The server's copies of nested memory have no bounds to check against.
                ExprKind::Element(base, _) => reads_memory(base),
                _ => false,
            }
        });
        guest
    }
}

/// True if the API server must keep a copy of the request: the call makes, ends or changes an object as it says, or is
/// the first to tell of one.
fn matters_to_a_move(plan: &Plan, at: ValueLocation) -> bool {
    // New objects that the specification does not record would cost a copy of the request for nothing.
    let told = (plan.output || matches!(at, ValueLocation::Result)) && !plan.object.allocate;
    match plan.kind {
        Kind::Handle { retain, release, .. } => {
            told || retain || release || plan.object.deallocate || plan.object.record.is_some()
        }
        Kind::Frees => true,
        _ => plan.is_numbered_memory(),
    }
}

/// Created handles behind an output pointer; as many as there is room for, or nobody knew before the call how many.
fn mint_outputs(model: &Model, instruction: &mut Instruction) {
    match &mut instruction.operation {
        Operation::Elements(e) if e.output && !e.input && e.returned.is_none() => {
            e.element.iter_mut().for_each(|element| mint(model, element));
        }
        Operation::Choice { then, otherwise, .. } => {
            then.iter_mut().chain(otherwise).for_each(|i| mint_outputs(model, i));
        }
        _ => {}
    }
}

/// The call leaves the memory of a state's members alone. Before it `makes` the state they are anything, sizes too.
fn rest(element: &mut Instruction, makes: bool) {
    let Operation::Struct { fields, state: Some(_), .. } = &mut element.operation else { return };
    for field in fields {
        if let Operation::Bytes(bytes) = &mut field.operation
            && (makes || !matches!(bytes.mode, Mode::Scratch { .. }))
        {
            bytes.mode = Mode::Resting;
            bytes.cursor = false;
        }
    }
}

fn mint(model: &Model, instruction: &mut Instruction) {
    if let Operation::Handle(h) = &mut instruction.operation {
        // A value of four bytes has no room for an id.
        h.minted = h.object.allocate && model.handle_types[h.handle].size == 8;
    }
}
