//! Shapes of up to five dimensions, kept inline so that a step never allocates for them.

use std::fmt;

pub const MAX_RANK: usize = 5;

/// The dimensions of a contiguous, row-major tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: usize,
}

impl Shape {
    /// No dimensions: one element.
    pub const SCALAR: Shape = Shape { dims: [1; MAX_RANK], rank: 0 };

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        // Saturating: a shape too large for memory must not look like a small one.
        self.dims().iter().fold(1, |n: usize, &d| n.saturating_mul(d))
    }

    /// Whether a dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last dimension; 1 for a scalar.
    pub fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.dims().iter().rev().skip(1).fold(1, |n: usize, &d| n.saturating_mul(d))
    }

    /// The same shape with another last dimension.
    pub fn with_last(mut self, last: usize) -> Shape {
        if self.rank > 0 {
            self.dims[self.rank - 1] = last;
        }
        self
    }

    /// The same shape without its last dimension.
    pub fn without_last(mut self) -> Shape {
        if self.rank > 0 {
            self.rank -= 1;
            self.dims[self.rank] = 1;
        }
        self
    }

    /// The same shape with one more dimension at the end.
    pub(crate) fn appended(mut self, size: usize) -> Result<Shape, crate::Error> {
        if self.rank == MAX_RANK {
            return Err(crate::Error::TooManyDimensions { rank: MAX_RANK + 1, limit: MAX_RANK });
        }
        self.dims[self.rank] = size;
        self.rank += 1;
        Ok(self)
    }

    /// The same shape with dimension `axis` replaced.
    pub(crate) fn with_dim(mut self, axis: usize, size: usize) -> Shape {
        self.dims[axis] = size;
        self
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(array: [usize; N]) -> Shape {
        const { assert!(N <= MAX_RANK) };
        let mut dims = [1; MAX_RANK];
        dims[..N].copy_from_slice(&array);
        Shape { dims, rank: N }
    }
}

impl TryFrom<&[usize]> for Shape {
    type Error = crate::Error;

    fn try_from(slice: &[usize]) -> Result<Shape, crate::Error> {
        if slice.len() > MAX_RANK {
            return Err(crate::Error::TooManyDimensions { rank: slice.len(), limit: MAX_RANK });
        }
        let mut dims = [1; MAX_RANK];
        dims[..slice.len()].copy_from_slice(slice);
        Ok(Shape { dims, rank: slice.len() })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}
