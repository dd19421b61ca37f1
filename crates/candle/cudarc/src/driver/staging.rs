//! Page-locked memory between the host's slices and the device, so that no copy waits for the driver to
//! pin anything: an upload returns when its bytes lie in a chunk here, a download when they have arrived.
//!
//! A few chunks take turns. A chunk is written again only after the event behind its last copy.

use gpu::unchecked::Stream;
use gpu::{Event, Pinned, Untimed};

const CHUNK: usize = 256 * 1024;
const N_CHUNKS: usize = 4;

#[derive(Default)]
pub(crate) struct Staging {
    chunks: Vec<Chunk>,
    /// The chunk being filled, and how far.
    current: usize,
    used: usize,
}

struct Chunk {
    memory: Pinned<u8>,
    /// After the last copy out of it, while nobody has waited for that.
    busy: Option<Event<Untimed>>,
}

impl Staging {
    /// Copy to the device, in order with the stream's other work.
    ///
    /// # Safety
    /// `to` has room for all of `from`.
    pub unsafe fn upload(&mut self, stream: &Stream, from: &[u8], to: u64) -> gpu::Result<()> {
        let mut done = 0;
        while done < from.len() {
            let room = self.room(stream)?;
            let part = &from[done..from.len().min(done + room)];
            let start = self.used;
            let chunk = &mut self.chunks[self.current];
            chunk.memory[start..start + part.len()].copy_from_slice(part);
            let source = chunk.memory[start..].as_ptr();
            // SAFETY: the bytes stay in the chunk, which is not written there again before its event.
            unsafe { stream.copy_to_device(to + done as u64, source.cast(), part.len())? };
            done += part.len();
            // Copies start on 16 bytes, as the drivers like them.
            self.used = (start + part.len()).next_multiple_of(16);
        }
        Ok(())
    }

    /// Copy from the device and wait for it.
    ///
    /// # Safety
    /// `from` holds as many bytes as `to`.
    pub unsafe fn download(&mut self, stream: &Stream, from: u64, to: &mut [u8]) -> gpu::Result<()> {
        let mut done = 0;
        while done < to.len() {
            self.next_chunk(stream)?;
            let chunk = &mut self.chunks[self.current];
            let bytes = CHUNK.min(to.len() - done);
            // SAFETY: the chunk is idle, and it is read only after the wait.
            unsafe { stream.copy_to_host(chunk.memory.as_mut_ptr().cast(), from + done as u64, bytes)? };
            stream.wait()?;
            to[done..done + bytes].copy_from_slice(&chunk.memory[..bytes]);
            done += bytes;
        }
        Ok(())
    }

    /// Room in the current chunk, after moving on where there is none.
    fn room(&mut self, stream: &Stream) -> gpu::Result<usize> {
        if self.chunks.is_empty() || self.used >= CHUNK {
            self.next_chunk(stream)?;
        }
        Ok(CHUNK - self.used)
    }

    /// Move on to a chunk that no copy uses.
    fn next_chunk(&mut self, stream: &Stream) -> gpu::Result<()> {
        if let Some(chunk) = self.chunks.get_mut(self.current) {
            chunk.busy = Some(stream.record()?);
        }
        self.used = 0;
        if self.chunks.len() < N_CHUNKS {
            self.chunks.push(Chunk { memory: stream.pinned(CHUNK)?, busy: None });
            self.current = self.chunks.len() - 1;
            return Ok(());
        }
        self.current = (self.current + 1) % N_CHUNKS;
        if let Some(event) = self.chunks[self.current].busy.take() {
            event.wait()?;
        }
        Ok(())
    }
}
