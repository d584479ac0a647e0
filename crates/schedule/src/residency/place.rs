//! Where the device memory of a session is.

/// The state of a session's memory. Its transitions are those of [`Place::after`], and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On its devices.
    In,
    /// It was told to leave; it counts as there until it says that it has left.
    GoingOut,
    /// In the host's memory, at least a part of it: the session does not work.
    Out,
    /// A part of it is out, and it was told to give up more of the rest; that counts as there until it says that it has left.
    GoingFurther,
    /// It was told to return, and counts as there from then on.
    ComingIn,
}

/// A step of a session's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Evict,
    Left,
    Return,
    Back,
    /// It is where it was before the last order.
    Stayed,
}

impl Place {
    /// `None`: the step is impossible here.
    pub fn after(self, step: Step) -> Option<Place> {
        Some(match (self, step) {
            (Place::In, Step::Evict) => Place::GoingOut,
            (Place::GoingOut, Step::Left) => Place::Out,
            (Place::GoingOut, Step::Stayed) => Place::In,
            (Place::Out, Step::Evict) => Place::GoingFurther,
            (Place::GoingFurther, Step::Left | Step::Stayed) => Place::Out,
            (Place::Out, Step::Return) => Place::ComingIn,
            (Place::ComingIn, Step::Back) => Place::In,
            (Place::ComingIn, Step::Stayed) => Place::Out,
            _ => return None,
        })
    }

    /// True while an order is not answered.
    pub fn is_under_way(self) -> bool {
        self.is_leaving() || self == Place::ComingIn
    }

    /// True while it has not said that it has left.
    pub fn is_leaving(self) -> bool {
        matches!(self, Place::GoingOut | Place::GoingFurther)
    }

    /// For people.
    pub fn told(self) -> &'static str {
        match self {
            Place::In => "in",
            Place::GoingOut | Place::GoingFurther => "going out",
            Place::Out => "out",
            Place::ComingIn => "coming in",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_steps() {
        let steps = [Step::Evict, Step::Left, Step::Return, Step::Back, Step::Stayed];
        let after = |place: Place| steps.map(|step| place.after(step));
        assert_eq!(after(Place::In), [Some(Place::GoingOut), None, None, None, None]);
        assert_eq!(after(Place::GoingOut), [None, Some(Place::Out), None, None, Some(Place::In)]);
        assert_eq!(after(Place::Out), [Some(Place::GoingFurther), None, Some(Place::ComingIn), None, None]);
        assert_eq!(after(Place::GoingFurther), [None, Some(Place::Out), None, None, Some(Place::Out)]);
        assert_eq!(after(Place::ComingIn), [None, None, None, Some(Place::In), Some(Place::Out)]);
    }
}
