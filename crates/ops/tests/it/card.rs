//! The same table on every GPU that is here. Without one it is skipped with the reason; `ROCI_REQUIRE_GPU=1` makes that
//! a failure. Longer than other files: a method for each op.

use std::cell::RefCell;
use std::rc::Rc;

use gpu::{Blas, Cache, Device, Number, ProductTypes, Queue};
use ops::{
    Activation, Arena, AttentionChip, AttentionPlan, ClusterRoom, Clusters, DESCRIBED_WORDS, DeviceSpans, Exec,
    ExpertLeft, ExpertMatrices, ExpertPairs, ExpertProduct, Gpu, HeadNorms, Heads, IndexQueries, Indices, KV_BLOCK,
    Kernels, Kv, Layout, LowRank, LowRankProduct, Mode, NormKind, Numerics, Pairing, Place, PlaceMut, Product,
    Projected, QuerySpan, Routing, Shaping, Spans, StateSpan, StateSpans, Tensor, View, ViewMut, Workspace,
    add_rmsnorm, adjust, attention_with, choose_experts, choose_tokens, chosen_words, cluster_logits, describe, embed,
    expert_matmul, feed, gather_rows, glu, glu_matmul, grouped_experts, hadamard, kv_store, layernorm, low_rank,
    low_rank_experts, matmul, norm_both_heads, pack, packed_on_device, rmsnorm, rope, rope_store, sample, scatter_rows,
    store_index_keys, sum_experts, swiglu, take_rows,
};
use weights::Dtype;

use crate::clusters::ClusterCase;
use crate::recurrent::Scan;

pub struct Card {
    queue: Queue,
    kernels: Kernels,
    workspace: RefCell<Workspace>,
    blas: Option<Blas>,
}

thread_local! {
    static CARDS: Rc<Vec<Card>> = Rc::new(find());
}

/// Every GPU of this machine.
pub fn cards() -> Rc<Vec<Card>> {
    CARDS.with(Rc::clone)
}

fn find() -> Vec<Card> {
    test_support::gpus::open().iter().map(Card::new).collect()
}

/// The same with kernels for which rows do not matter.
pub fn invariant_cards() -> Vec<Card> {
    let invariant = |card: Card| Card { kernels: card.kernels.with_numerics(Numerics::RowInvariant), ..card };
    find().into_iter().map(invariant).collect()
}

impl Card {
    fn new(device: &Device) -> Self {
        let queue = Queue::new(device).unwrap();
        let [activations, weights, parts] = Workspace::plan(128, 8192, 1 << 20).map(|len| queue.alloc(len).unwrap());
        let kinds = [ProductTypes::new(Number::F16, Number::F32), ProductTypes::new(Number::F32, Number::F32)];
        let blas = queue.blas(queue.alloc(8 << 20).unwrap(), &kinds).ok();
        let workspace = RefCell::new(Workspace { activations, weights, parts });
        Self { kernels: Kernels::new(device, Cache::of_user()), queue, workspace, blas }
    }

    pub fn name(&self) -> &str {
        self.queue.device().label()
    }

    fn run<T>(&self, blas: Option<&Blas>, body: impl FnOnce(Exec) -> Result<T, ops::Error>) -> T {
        let launcher = self.queue.launcher();
        let gpu = Gpu { launcher: &launcher, kernels: &self.kernels, blas, workspace: &self.workspace };
        body(Exec::Gpu(&gpu)).unwrap_or_else(|error| panic!("{}: {error}", self.name()))
    }

    /// A matrix on the device, in rows.
    pub fn tensor(&self, dtype: Dtype, shape: [usize; 2], bytes: &[u8]) -> Tensor {
        let mut tensor = self.empty(Layout::Rows, dtype, shape);
        if !bytes.is_empty() {
            let staged = self.queue.buffer_from(bytes).unwrap();
            let PlaceMut::Device(to) = tensor.view_mut().place else { unreachable!("carved on the device") };
            self.queue.launcher().copy(staged.all(), to).unwrap();
            self.queue.wait().unwrap();
        }
        tensor
    }

    fn empty(&self, layout: Layout, dtype: Dtype, shape: [usize; 2]) -> Tensor {
        let n_bytes = dtype.row_bytes(shape[1]).unwrap() * shape[0];
        let pool = self.queue.pool(n_bytes.max(1).next_multiple_of(256)).unwrap();
        Arena::on_device(pool).carve_as(layout, dtype, shape)
    }

    pub fn f32s(&self, numbers: &[f32], n_cols: usize) -> Tensor {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.tensor(Dtype::F32, [numbers.len() / n_cols, n_cols], &bytes)
    }

    pub fn read(&self, tensor: &Tensor) -> Vec<f32> {
        let Place::Device(bytes) = tensor.view().place else { unreachable!("carved on the device") };
        self.queue.read(bytes.cast().unwrap()).unwrap()
    }

    /// Weights as a model would hold them here.
    fn weights(&self, dtype: Dtype, shape: [usize; 2], bytes: &[u8]) -> Tensor {
        let rows = self.tensor(dtype, shape, bytes);
        let (layout, _) = packed_on_device(dtype, shape).unwrap();
        let mut tensor = self.empty(layout, dtype, shape);
        self.run(None, |exec| pack(exec, rows.view(), &mut tensor.view_mut()));
        self.queue.wait().unwrap();
        tensor
    }

    pub fn has_blas(&self) -> bool {
        self.blas.is_some()
    }

    /// Products of one x, each into a copy of its start.
    pub fn matmul(
        &self,
        x: &[f32],
        n_in: usize,
        weights: &[(Dtype, usize, &[u8])],
        starts: &[&[f32]],
        mode: Mode,
        through: Through,
    ) -> Vec<Vec<f32>> {
        let x = self.f32s(x, n_in);
        let held: Vec<Tensor> =
            weights.iter().map(|(dtype, n, bytes)| self.weights(*dtype, [*n, n_in], bytes)).collect();
        let mut outs: Vec<Tensor> = starts.iter().zip(weights).map(|(s, (_, n, _))| self.f32s(s, *n)).collect();
        let mut products: Vec<Product> = held
            .iter()
            .zip(&mut outs)
            .map(|(weight, out)| Product { weight: weight.view(), out: out.view_mut(), mode, may_be_coarse: true })
            .collect();
        let blas = if through == Through::Library { self.blas.as_ref() } else { None };
        self.run(blas, |exec| matmul(exec, x.view(), &mut products));
        drop(products);
        outs.iter().map(|out| self.read(out)).collect()
    }

    pub fn rmsnorm(&self, x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
        let n_cols = weight.len();
        let (x, weight) = (self.f32s(x, n_cols), self.f32s(weight, n_cols));
        let mut out = self.f32s(&vec![f32::NAN; x.shape()[0] * n_cols], n_cols);
        self.run(None, |exec| rmsnorm(exec, x.view(), weight.view(), eps, &mut out.view_mut()));
        self.read(&out)
    }

    pub fn add_rmsnorm(&self, x: &[f32], y: &[f32], weight: &[f32], eps: f32, factor: f32) -> Vec<f32> {
        let n_cols = weight.len();
        let [mut x, mut y, weight] = [x, y, weight].map(|numbers| self.f32s(numbers, n_cols));
        let (mut to, mut from) = (x.view_mut(), y.view_mut());
        self.run(None, |exec| add_rmsnorm(exec, &mut to, &mut from, weight.view(), eps, factor));
        self.read(&x)
    }

    /// The product of a gate and its partner, with the gate made on the way and before.
    pub fn glu_matmul(
        &self,
        activation: Activation,
        (gate, up): (&[f32], &[f32]),
        (dtype, shape, bytes): (Dtype, [usize; 2], &[u8]),
    ) -> [Vec<f32>; 2] {
        let [n_out, n_in] = shape;
        let weights = self.weights(dtype, shape, bytes);
        [true, false].map(|is_fused| {
            let (mut gate, up) = (self.f32s(gate, n_in), self.f32s(up, n_in));
            let mut out = self.f32s(&vec![f32::NAN; gate.shape()[0] * n_out], n_out);
            self.run(None, |exec| {
                let products = &mut [Product::write(weights.view(), out.view_mut())];
                if is_fused {
                    return glu_matmul(exec, activation, &mut gate.view_mut(), up.view(), products);
                }
                glu(exec, activation, &mut gate.view_mut(), up.view())?;
                matmul(exec, gate.view(), products)
            });
            self.read(&out)
        })
    }

    /// Queries, and the pools of keys and values, after norm and rotation in one launch or in several.
    pub fn norm_rope_store(
        &self,
        [q, k, v]: [&[f32]; 3],
        norms: &[Vec<f32>; 2],
        angles: &[f32],
        (head_dim, n_kv_heads, pairing, dtype): (usize, usize, Pairing, Dtype),
        is_fused: bool,
    ) -> [Vec<f32>; 3] {
        let n_rows = k.len() / (n_kv_heads * head_dim);
        let [mut q, mut k, v, angles] = [q, k, v, angles].map(|numbers| self.f32s(numbers, numbers.len() / n_rows));
        let [q_norm, k_norm] = norms.each_ref().map(|norm| self.f32s(norm, head_dim));
        let shape = [3 * n_kv_heads, KV_BLOCK * head_dim];
        let zeros = vec![0; dtype.row_bytes(shape[1]).unwrap() * shape[0]];
        let [mut k_pool, mut v_pool] = [(); 2].map(|()| self.tensor(dtype, shape, &zeros));
        let slots: Vec<u32> = (0..n_rows as u32).map(|row| row * 17 % (3 * KV_BLOCK as u32)).collect();
        let on_device = self.queue.buffer_from(&slots).unwrap();
        let norms = HeadNorms { q: q_norm.view(), k: k_norm.view(), eps: 1e-6 };
        self.run(None, |exec| {
            if !is_fused {
                let [q, k] = [&mut q.view_mut(), &mut k.view_mut()];
                norm_both_heads(exec, [q, k], [norms.q, norms.k], NormKind::Rms, norms.eps)?;
            }
            let (q, k, v, angles) = (q.view_mut(), k.view_mut(), v.view(), angles.view());
            let projected = Projected { q, k, v, angles, head_dim, pairing, norms: is_fused.then_some(norms) };
            let slots = Indices { host: &slots, device: Some(on_device.all()) };
            rope_store(exec, projected, slots, &mut k_pool.view_mut(), &mut v_pool.view_mut())
        });
        let stored = |pool: &Tensor| {
            let Place::Device(bytes) = pool.view().place else { unreachable!("carved on the device") };
            let bytes: Vec<u8> = self.queue.read(bytes).unwrap();
            let mut numbers = vec![0.0; shape[0] * shape[1]];
            ops::quant::dequantize(dtype, &bytes, &mut numbers);
            numbers
        };
        [self.read(&q), stored(&k_pool), stored(&v_pool)]
    }

    pub fn rope(
        &self,
        x: &[f32],
        n_cols: usize,
        angles: &[f32],
        n_rot: usize,
        head_dim: usize,
        pairing: Pairing,
    ) -> Vec<f32> {
        let (mut x, angles) = (self.f32s(x, n_cols), self.f32s(angles, n_rot));
        self.run(None, |exec| rope(exec, &mut x.view_mut(), angles.view(), head_dim, pairing));
        self.read(&x)
    }

    pub fn swiglu(&self, gate: &[f32], up: &[f32]) -> Vec<f32> {
        let (mut gate, up) = (self.f32s(gate, gate.len()), self.f32s(up, up.len()));
        self.run(None, |exec| swiglu(exec, &mut gate.view_mut(), up.view()));
        self.read(&gate)
    }

    pub fn embed(&self, dtype: Dtype, shape: [usize; 2], bytes: &[u8], tokens: &[u32]) -> Vec<f32> {
        let table = self.weights(dtype, shape, bytes);
        let on_device = self.queue.buffer_from(tokens).unwrap();
        let mut out = self.f32s(&vec![f32::NAN; tokens.len() * shape[1]], shape[1]);
        let indices = Indices { host: tokens, device: Some(on_device.all()) };
        self.run(None, |exec| embed(exec, table.view(), indices, &mut out.view_mut()));
        self.read(&out)
    }

    pub fn cluster_logits(&self, case: &ClusterCase) -> Vec<f32> {
        let n = case.n_tokens();
        let table = self.weights(case.dtype, [case.n_vocab, case.n_cols], &case.table);
        let [x, scores, ordering] =
            [(&case.x, case.n_cols), (&case.scores, case.n_clusters), (&case.ordering, case.n_vocab)]
                .map(|(numbers, n_cols)| self.f32s(numbers, n_cols));
        let blank = |n_rows: usize, n_cols: usize| self.f32s(&vec![f32::NAN; n_rows * n_cols], n_cols);
        let (mut tokens, mut rows, mut products) = (blank(1, n), blank(n, case.n_cols), blank(1, n));
        let mut logits = blank(x.shape()[0], case.n_vocab);
        let (scores, ordering, table) = (scores.view(), ordering.view(), table.view());
        let clusters = Clusters { scores, ordering, table, n_used: case.n_used };
        let mut room = ClusterRoom { tokens: tokens.view_mut(), rows: rows.view_mut(), products: products.view_mut() };
        self.run(None, |exec| cluster_logits(exec, x.view(), clusters, &mut room, &mut logits.view_mut()));
        self.read(&logits)
    }

    pub fn sample(&self, logits: &[f32], n_vocab: usize, words: &[u32]) -> Vec<u32> {
        let logits = self.f32s(logits, n_vocab);
        let on_device = self.queue.buffer_from(words).unwrap();
        let mut out = self.f32s(&vec![f32::NAN; logits.shape()[0]], 1);
        let choices = Indices { host: words, device: Some(on_device.all()) };
        self.run(None, |exec| sample(exec, logits.view(), choices, &mut out.view_mut()));
        self.read(&out).into_iter().map(f32::to_bits).collect()
    }

    pub fn feed(&self, given: &[u32], sources: &[u32], chosen: &[u32]) -> Vec<u32> {
        let bits: Vec<f32> = chosen.iter().map(|&token| f32::from_bits(token)).collect();
        let chosen = self.f32s(&bits, 1);
        let mut out = self.f32s(&vec![f32::NAN; given.len()], 1);
        let (tokens, from) = (self.queue.buffer_from(given).unwrap(), self.queue.buffer_from(sources).unwrap());
        let given = Indices { host: given, device: Some(tokens.all()) };
        let sources = Indices { host: sources, device: Some(from.all()) };
        self.run(None, |exec| feed(exec, given, sources, chosen.view(), &mut out.view_mut()));
        self.read(&out).into_iter().map(f32::to_bits).collect()
    }

    pub fn adjust(&self, logits: &[f32], n_vocab: usize, words: &[u32], tokens: &[u32]) -> Vec<f32> {
        let bits: Vec<f32> = tokens.iter().map(|&token| f32::from_bits(token)).collect();
        let (mut logits, tokens) = (self.f32s(logits, n_vocab), self.f32s(&bits, 1));
        let on_device = self.queue.buffer_from(words).unwrap();
        let words = Indices { host: words, device: Some(on_device.all()) };
        self.run(None, |exec| adjust(exec, words, tokens.view(), &mut logits.view_mut()));
        self.read(&logits)
    }

    pub fn describe(&self, logits: &[f32], n_vocab: usize, chosen: &[u32], wanted: &[u32]) -> Vec<f32> {
        let bits: Vec<f32> = chosen.iter().map(|&token| f32::from_bits(token)).collect();
        let (logits, chosen) = (self.f32s(logits, n_vocab), self.f32s(&bits, 1));
        let mut out = self.f32s(&vec![0.0; wanted.len() * DESCRIBED_WORDS], DESCRIBED_WORDS);
        let on_device = self.queue.buffer_from(wanted).unwrap();
        let wanted = Indices { host: wanted, device: Some(on_device.all()) };
        self.run(None, |exec| describe(exec, logits.view(), chosen.view(), wanted, &mut out.view_mut()));
        self.read(&out)
    }

    /// A product `start` of `x` after the adapters of its rows changed it.
    pub fn low_rank(
        &self,
        (x, n_in): (&[f32], usize),
        (numbers, words): (&[f32], &[u32]),
        slots: &[u32],
        (start, n_out): (&[f32], usize),
    ) -> Vec<f32> {
        let (x, held, mut out) = (self.f32s(x, n_in), self.f32s(numbers, numbers.len()), self.f32s(start, n_out));
        let mut hidden = self.f32s(&vec![f32::NAN; slots.len() * 16], 16);
        let (table, rows) = (self.queue.buffer_from(words).unwrap(), self.queue.buffer_from(slots).unwrap());
        let entries = Indices { host: words, device: Some(table.all()) };
        let slots = Indices { host: slots, device: Some(rows.all()) };
        let change = LowRank { numbers: held.view(), entries };
        self.run(None, |exec| {
            let products = &mut [LowRankProduct { change, out: out.view_mut() }];
            low_rank(exec, x.view(), slots, &mut hidden.view_mut(), products)
        });
        self.read(&out)
    }

    /// As [`Self::low_rank`], of pairs with their chosen experts.
    pub fn low_rank_experts(
        &self,
        (x, n_in): (&[f32], usize),
        (numbers, words): (&[f32], &[u32]),
        slots: &[u32],
        (chosen, n_experts): (&[u32], usize),
        (start, n_out): (&[f32], usize),
    ) -> Vec<f32> {
        let (x, held, mut out) = (self.f32s(x, n_in), self.f32s(numbers, numbers.len()), self.f32s(start, n_out));
        let mut hidden = self.f32s(&vec![f32::NAN; chosen.len() * 16], 16);
        let bits: Vec<f32> = chosen.iter().map(|expert| f32::from_bits(*expert)).collect();
        let chosen = self.f32s(&bits, 1);
        let (table, rows) = (self.queue.buffer_from(words).unwrap(), self.queue.buffer_from(slots).unwrap());
        let entries = Indices { host: words, device: Some(table.all()) };
        let slots = Indices { host: slots, device: Some(rows.all()) };
        let change = LowRank { numbers: held.view(), entries };
        let pairs = ExpertPairs { chosen: chosen.view(), slots, n_experts };
        self.run(None, |exec| {
            low_rank_experts(exec, x.view(), change, pairs, &mut hidden.view_mut(), &mut out.view_mut())
        });
        self.read(&out)
    }

    /// The rows that steps of a recurrent op make, each step reading what the ones before left in the slots.
    pub fn recur(
        &self,
        inputs: &[(&[f32], usize)],
        (n_slots, state_len): (usize, usize),
        (n_rows, n_cols): (usize, usize),
        steps: &[Vec<StateSpan>],
        op: Scan,
    ) -> Vec<f32> {
        let inputs: Vec<Tensor> = inputs.iter().map(|(numbers, n_cols)| self.f32s(numbers, *n_cols)).collect();
        let inputs: Vec<View> = inputs.iter().map(Tensor::view).collect();
        // What is left in a slot must not matter.
        let mut state = self.f32s(&vec![f32::NAN; n_slots * state_len], state_len);
        let mut out = self.f32s(&vec![f32::NAN; n_rows * n_cols], n_cols);
        let mut other = self.f32s(&vec![f32::NAN; n_rows * n_cols], n_cols);
        for spans in steps {
            let words: Vec<u32> = spans.iter().flat_map(StateSpan::words).collect();
            let words = self.queue.buffer_from(&words).unwrap();
            let spans = StateSpans { host: spans, device: Some(words.all()) };
            let outs = [&mut out.view_mut(), &mut other.view_mut()];
            self.run(None, |exec| op(exec, &inputs, &mut state.view_mut(), spans, outs));
            self.queue.wait().unwrap();
        }
        self.read(&out)
    }

    pub fn hadamard(&self, matrices: &[(&[f32], usize)], width: usize) -> Vec<Vec<f32>> {
        let mut held: Vec<Tensor> = matrices.iter().map(|(x, n_cols)| self.f32s(x, *n_cols)).collect();
        self.run(None, |exec| {
            let mut views: Vec<ViewMut> = held.iter_mut().map(Tensor::view_mut).collect();
            hadamard(exec, &mut views, width)
        });
        held.iter().map(|tensor| self.read(tensor)).collect()
    }

    pub fn take_rows(&self, x: &[f32], n_cols: usize, rows: &[u32]) -> Vec<f32> {
        let x = self.f32s(x, n_cols);
        let on_device = self.queue.buffer_from(rows).unwrap();
        let mut out = self.f32s(&vec![f32::NAN; rows.len() * n_cols], n_cols);
        let indices = Indices { host: rows, device: Some(on_device.all()) };
        self.run(None, |exec| take_rows(exec, x.view(), indices, &mut out.view_mut()));
        self.read(&out)
    }

    /// The rows as they were gathered, and `onto` after they were scattered back to where they came from.
    pub fn copy_rows(&self, x: &[f32], onto: &[f32], n_cols: usize, rows: &[u32]) -> [Vec<f32>; 2] {
        let (x, mut onto) = (self.f32s(x, n_cols), self.f32s(onto, n_cols));
        let on_device = self.queue.buffer_from(rows).unwrap();
        let mut piece = self.f32s(&vec![0.0; rows.len() * n_cols], n_cols);
        let indices = Indices { host: rows, device: Some(on_device.all()) };
        self.run(None, |exec| gather_rows(exec, x.view(), indices, &mut piece.view_mut()));
        self.run(None, |exec| scatter_rows(exec, piece.view(), indices, &mut onto.view_mut()));
        [self.read(&piece), self.read(&onto)]
    }

    pub fn store(&self, k: &[f32], v: &[f32], slots: &[u32], heads: &Heads, cache: (&mut Tensor, &mut Tensor)) {
        let n_cols = heads.n_kv_heads * heads.head_dim;
        let (k, v) = (self.f32s(k, n_cols), self.f32s(v, n_cols));
        let on_device = self.queue.buffer_from(slots).unwrap();
        let indices = Indices { host: slots, device: Some(on_device.all()) };
        let (k_pool, v_pool) = (&mut cache.0.view_mut(), &mut cache.1.view_mut());
        self.run(None, |exec| kv_store(exec, k.view(), v.view(), indices, heads.head_dim, k_pool, v_pool));
        self.queue.wait().unwrap();
    }

    /// An op that changes `x` in place, with another matrix beside it.
    pub fn change(
        &self,
        (x, n_cols): (&[f32], usize),
        (y, n_y_cols): (&[f32], usize),
        op: impl FnOnce(Exec, &mut ViewMut, View) -> Result<(), ops::Error>,
    ) -> Vec<f32> {
        let (mut x, y) = (self.f32s(x, n_cols), self.f32s(y, n_y_cols));
        self.run(None, |exec| op(exec, &mut x.view_mut(), y.view()));
        self.read(&x)
    }

    pub fn layernorm(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<f32> {
        let n_cols = weight.len();
        let (x, weight) = (self.f32s(x, n_cols), self.f32s(weight, n_cols));
        let bias = bias.map(|bias| self.f32s(bias, n_cols));
        let mut out = self.f32s(&vec![f32::NAN; x.shape()[0] * n_cols], n_cols);
        let bias = bias.as_ref().map(Tensor::view);
        self.run(None, |exec| layernorm(exec, x.view(), weight.view(), bias, eps, &mut out.view_mut()));
        self.read(&out)
    }

    /// Which experts each row goes to, with which weights, and the product of each pair with its expert's matrix.
    pub fn experts(
        &self,
        (x, n_in): (&[f32], usize),
        (scores, choice_bias): (&[f32], Option<&[f32]>),
        routing: &Routing,
        (dtype, n_out, matrices): (Dtype, usize, &[Vec<u8>]),
        biases: &[Vec<f32>],
    ) -> (Vec<u32>, Vec<f32>, Vec<f32>, Vec<f32>) {
        let n_experts = matrices.len();
        let (n_rows, shape) = (scores.len() / n_experts, [n_out, n_in]);
        let n_pairs = n_rows * routing.n_used;
        let (x, scores) = (self.f32s(x, n_in), self.f32s(scores, n_experts));
        let choice_bias = choice_bias.map(|bias| self.f32s(bias, n_experts));
        // All in one allocation, with something between them.
        let (layout, n_bytes) = packed_on_device(dtype, shape).unwrap();
        let mut arena = Arena::on_device(self.queue.pool((n_bytes + 1024 + 4 * n_out + 1024) * n_experts).unwrap());
        let held: Vec<(Tensor, Tensor)> = (0..n_experts)
            .map(|i| {
                let (mut matrix, mut bias) =
                    (arena.carve_as(layout, dtype, shape), arena.carve(Dtype::F32, [1, n_out]));
                let rows = self.tensor(dtype, shape, &matrices[i]);
                self.run(None, |exec| pack(exec, rows.view(), &mut matrix.view_mut()));
                if let Some(numbers) = biases.get(i) {
                    let from = self.f32s(numbers, n_out);
                    let rows = self.queue.buffer_from(&[0_u32]).unwrap();
                    let indices = Indices { host: &[0], device: Some(rows.all()) };
                    self.run(None, |exec| take_rows(exec, from.view(), indices, &mut bias.view_mut()));
                }
                self.queue.wait().unwrap();
                (matrix, bias)
            })
            .collect();
        let matrices = ExpertMatrices {
            weights: held.iter().map(|pair| pair.0.view()).collect(),
            biases: held.iter().map(|pair| pair.1.view()).take(biases.len()).collect(),
        };
        let empty = |n: usize, n_cols: usize| self.f32s(&vec![f32::NAN; n * n_cols], n_cols);
        let (mut chosen, mut weights) = (empty(n_pairs, 1), empty(n_pairs, 1));
        let (mut out, mut sum) = (empty(n_pairs, n_out), self.f32s(&vec![1.0; n_rows * n_out], n_out));
        let (mut again, mut both) = (empty(n_pairs, n_out), empty(n_rows, n_out));
        self.run(None, |exec| {
            let bias = choice_bias.as_ref().map(Tensor::view);
            choose_experts(exec, scores.view(), bias, routing, &mut chosen.view_mut(), &mut weights.view_mut())?;
            let mut products = [
                ExpertProduct { matrices: &matrices, out: out.view_mut() },
                ExpertProduct { matrices: &matrices, out: again.view_mut() },
            ];
            expert_matmul(exec, ExpertLeft::Rows(x.view()), &mut products, chosen.view())?;
            sum_experts(exec, out.view(), weights.view(), Mode::Add, &mut sum.view_mut())?;
            sum_experts(exec, again.view(), weights.view(), Mode::Write, &mut both.view_mut())
        });
        let (sum, both) = (self.read(&sum), self.read(&both));
        sum.iter().zip(&both).for_each(|(sum, both)| assert!((sum - 1.0 - both).abs() <= 1e-4 * sum.abs().max(1.0)));
        assert_eq!(self.read(&out), self.read(&again));
        let chosen = self.read(&chosen).into_iter().map(f32::to_bits).collect();
        (chosen, self.read(&weights), self.read(&out), both)
    }

    /// Matrices of experts in one allocation, with something between them.
    fn stacked(&self, dtype: Dtype, shape: [usize; 2], matrices: &[Vec<u8>]) -> Vec<Tensor> {
        let (layout, n_bytes) = packed_on_device(dtype, shape).unwrap();
        let pool = self.queue.pool((n_bytes + 2048) * matrices.len()).unwrap();
        let mut arena = Arena::on_device(pool);
        let pack_one = |bytes: &Vec<u8>| {
            let (mut tensor, _between) = (arena.carve_as(layout, dtype, shape), arena.carve(Dtype::F32, [1, 5]));
            let rows = self.tensor(dtype, shape, bytes);
            self.run(None, |exec| pack(exec, rows.view(), &mut tensor.view_mut()));
            self.queue.wait().unwrap();
            tensor
        };
        matrices.iter().map(pack_one).collect()
    }

    /// What the experts make of every pair; `None` where the rows are not grouped here.
    pub fn grouped_experts(
        &self,
        (x, n_in): (&[f32], usize),
        chosen: &[u32],
        activation: Activation,
        sets: [&ExpertWeights; 3],
    ) -> Option<Vec<f32>> {
        let x = self.f32s(x, n_in);
        let as_bits: Vec<f32> = chosen.iter().map(|expert| f32::from_bits(*expert)).collect();
        let chosen = self.f32s(&as_bits, 1);
        let held: Vec<(Vec<Tensor>, Vec<Tensor>)> = sets
            .iter()
            .map(|set| {
                let bytes = |bias: &Vec<f32>| bias.iter().flat_map(|x| x.to_le_bytes()).collect();
                let biases: Vec<Vec<u8>> = set.biases.iter().map(bytes).collect();
                (
                    self.stacked(set.dtype, set.shape, &set.matrices),
                    self.stacked(Dtype::F32, [1, set.shape[0]], &biases),
                )
            })
            .collect();
        let [gate, up, down] = [0, 1, 2].map(|i: usize| ExpertMatrices {
            weights: held[i].0.iter().map(Tensor::view).collect(),
            biases: held[i].1.iter().map(Tensor::view).collect(),
        });
        let [n_ff, n_out] = [sets[0].shape[0], sets[2].shape[0]];
        let empty = |n_cols: usize| self.f32s(&vec![f32::NAN; as_bits.len() * n_cols], n_cols);
        let (mut space, mut y) = (empty(n_ff), empty(n_out));
        let is_made = self.run(None, |exec| {
            let (space, y) = (&mut space.view_mut(), &mut y.view_mut());
            grouped_experts(exec, x.view(), [&gate, &up, &down], activation, chosen.view(), space, y)
        });
        is_made.then(|| self.read(&y))
    }

    pub fn has_matrix_units(&self) -> bool {
        self.queue.device().has_matrix_units()
    }

    /// The words of `choose_tokens`, with room for the scores of five rows.
    pub fn choose(
        &self,
        [q, weights, keys]: [&[f32]; 3],
        slots: &[u32],
        (dtype, n_blocks): (Dtype, usize),
        (n_heads, n_chosen): (usize, usize),
        spans: &[QuerySpan],
    ) -> Vec<u32> {
        let n_rows = weights.len() / n_heads;
        let dim = q.len() / weights.len();
        let [q, weights, keys] =
            [(q, n_heads * dim), (weights, n_heads), (keys, dim)].map(|(numbers, n_cols)| self.f32s(numbers, n_cols));
        let shape = [n_blocks, KV_BLOCK * dim];
        let mut pool = self.tensor(dtype, shape, &vec![0xff; dtype.row_bytes(shape[1]).unwrap() * n_blocks]);
        let on_device = self.queue.buffer_from(slots).unwrap();
        let indices = Indices { host: slots, device: Some(on_device.all()) };
        self.run(None, |exec| store_index_keys(exec, keys.view(), indices, &mut pool.view_mut()));
        let n_context = spans.iter().map(|span| span.first_position + span.n_rows).max().unwrap();
        let mut scores = self.f32s(&vec![f32::NAN; 5 * n_context], n_context);
        let n_words = chosen_words(n_context);
        let mut chosen = self.f32s(&vec![0.0; n_rows * n_words], n_words);
        let mut words = Vec::new();
        AttentionPlan::write_spans(spans, &mut words);
        let words = self.queue.buffer_from(&words).unwrap();
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 64, scale: 1.0 };
        let chip = AttentionChip::of(&self.kernels, dtype, true);
        let plan = AttentionPlan::new(&[1], &heads, n_context, &chip);
        let device = DeviceSpans { plan, tiles: words.all(), words: words.all() };
        let spans = Spans { host: spans, device: Some(device) };
        let queries = IndexQueries { q: q.view(), weights: weights.view(), keys: pool.view(), n_heads, n_chosen };
        self.run(None, |exec| choose_tokens(exec, queries, spans, &mut scores.view_mut(), &mut chosen.view_mut()));
        self.read(&chosen).into_iter().map(f32::to_bits).collect()
    }

    /// `sinks`, `slopes` and what was chosen replace those of the shaping, which lie on the host.
    pub fn attention(
        &self,
        q: &[f32],
        cache: (&Tensor, &Tensor),
        heads: Heads,
        spans: &[QuerySpan],
        (shaping, sinks, slopes): (Shaping, Option<&[f32]>, Option<&[f32]>),
    ) -> Vec<f32> {
        let sinks = sinks.map(|sinks| self.f32s(sinks, sinks.len()));
        let slopes = slopes.map(|slopes| self.f32s(slopes, slopes.len()));
        let (sinks, slopes) = (sinks.as_ref().map(Tensor::view), slopes.as_ref().map(Tensor::view));
        let chosen = shaping.chosen.map(|chosen| match chosen.place {
            Place::Host(bytes) => self.tensor(Dtype::F32, chosen.shape, bytes),
            Place::Device(_) => unreachable!("tests have theirs on the host"),
        });
        let chosen = chosen.as_ref().map(Tensor::view);
        let shaping = Shaping { sinks, slopes, chosen, ..shaping };
        let is_shaped = shaping.window.is_some() || shaping.softcap.is_some() || shaping.sinks.is_some();
        let n_cols = heads.n_heads * heads.head_dim;
        let q = self.f32s(q, n_cols);
        let mut out = self.f32s(&vec![f32::NAN; q.shape()[0] * n_cols], n_cols);
        let rows: Vec<usize> = spans.iter().map(|span| span.n_rows).collect();
        let n_context = spans.iter().map(|span| span.first_position + span.n_rows).max().unwrap();
        let dtype = cache.0.view().dtype;
        let mut chip = AttentionChip::of(&self.kernels, dtype, is_shaped);
        if shaping.slopes.is_some() || shaping.chosen.is_some() {
            chip = chip.without_units();
        }
        if self.kernels.numerics() == Numerics::RowInvariant {
            chip = chip.with_parts(&heads, 4096);
        }
        let plan = AttentionPlan::new(&rows, &heads, n_context, &chip);
        let (mut tiles, mut words) = (Vec::new(), Vec::new());
        plan.write_tiles(spans, &heads, &mut tiles);
        AttentionPlan::write_spans(spans, &mut words);
        let [tiles, words] = [tiles, words].map(|words| self.queue.buffer_from(&words).unwrap());
        let device = DeviceSpans { plan, tiles: tiles.all(), words: words.all() };
        let spans = Spans { host: spans, device: Some(device) };
        let kv = Kv { k: cache.0.view(), v: cache.1.view() };
        self.run(None, |exec| attention_with(exec, q.view(), kv, heads, spans, shaping, &mut out.view_mut()));
        self.read(&out)
    }
}

/// One matrix of every expert, as a file holds it.
pub struct ExpertWeights {
    pub dtype: Dtype,
    pub shape: [usize; 2],
    pub matrices: Vec<Vec<u8>>,
    pub biases: Vec<Vec<f32>>,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Through {
    /// Kernels of this program only.
    Kernels,
    /// The vendor's library, where it takes the product.
    Library,
}

#[test]
fn memory_in_the_wrong_place_is_refused() {
    for card in cards().iter() {
        let numbers = [1.0_f32; 8];
        let on_host = View::of_f32(&numbers, 8);
        let mut out = card.f32s(&numbers, 8);
        let launcher = card.queue.launcher();
        let gpu = Gpu { launcher: &launcher, kernels: &card.kernels, blas: None, workspace: &card.workspace };
        let outcome = rmsnorm(Exec::Gpu(&gpu), on_host, on_host, 1e-5, &mut out.view_mut());
        assert!(matches!(outcome, Err(ops::Error::Place { what: "x", .. })), "{outcome:?}");
    }
}
