//! Numbers that steer an op: tokens, slots, rows. The host's copy is what checks read; a GPU reads its own copy, which
//! the caller uploaded with everything else of a step.

#[derive(Copy, Clone, Default)]
pub struct Indices<'a> {
    pub host: &'a [u32],
    pub device: Option<gpu::Slice<'a, u32>>,
}

impl<'a> Indices<'a> {
    pub fn len(&self) -> usize {
        self.host.len()
    }

    pub fn is_empty(&self) -> bool {
        self.host.is_empty()
    }

    pub(crate) fn on_device(&self, op: &'static str, what: &'static str) -> Result<gpu::Slice<'a, u32>, crate::Error> {
        match self.device {
            Some(slice) if slice.len() >= self.host.len() => Ok(slice),
            Some(slice) => Err(crate::Error::Bytes { op, what, found: slice.bytes(), needed: 4 * self.host.len() }),
            None => Err(crate::Error::Place { op, what, expected: "device memory" }),
        }
    }
}

impl<'a> From<&'a [u32]> for Indices<'a> {
    fn from(host: &'a [u32]) -> Self {
        Self { host, device: None }
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for Indices<'a> {
    fn from(host: &'a [u32; N]) -> Self {
        Self { host, device: None }
    }
}

impl<'a> From<&'a Vec<u32>> for Indices<'a> {
    fn from(host: &'a Vec<u32>) -> Self {
        Self { host, device: None }
    }
}
