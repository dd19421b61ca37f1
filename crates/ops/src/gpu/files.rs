//! Every kernel file of the crate: what the scripts compile, checked by the tests of `unit.rs`.

use super::unit::KernelFile;
use super::{attention, blas, experts, float_tiles, grouped, matrix_tiles, matvec, mma, wide};
use crate::{
    adjust, columns, conv1d, copy_rows, delta_scan, embed, feed, kv_store, low_rank, norm_heads, numbers, pack,
    rmsnorm, rope, rope_store, sample, selective_scan, sparsify, ssm_scan, streams, swiglu, take_rows,
};

/// In the order of their names. A file with two rows is compiled with both.
pub(crate) const FILES: [&KernelFile; 42] = [
    &adjust::AdjustKernels::FILE,
    &attention::split::VectorKernels::FILE,
    &attention::split::WideVectorKernels::FILE,
    &columns::ColumnKernels::FILE,
    &conv1d::ConvKernels::FILE,
    &copy_rows::CopyRowsKernels::FILE,
    &delta_scan::DeltaKernels::FILE,
    &embed::EmbedKernels::FILE,
    &experts::ExpertKernels::FILE,
    &grouped::GroupKernels::FILE,
    &grouped::MmaExperts::FILE,
    &grouped::UnitExperts::FILE,
    &feed::FeedKernels::FILE,
    &attention::flash::FlashKernels::FILE,
    &attention::split::FewKernels::FILE,
    &attention::split::WideFewKernels::FILE,
    &attention::flash::FlashUnitsKernels::FILE,
    &attention::flash::FlashWgmmaKernels::FILE,
    &mma::HalvesKernels::FILE,
    &kv_store::KvStoreKernels::FILE,
    &blas::LeftF16::FILE,
    &low_rank::LowRankKernels::FILE,
    &float_tiles::FloatTiles::FILE,
    &mma::MmaKernels::FILE,
    &matrix_tiles::MatrixTiles::FILE,
    &wide::WideKernels::FILE,
    &matvec::PlainMatvec::FILE,
    &matvec::PackedMatvec::FILE,
    &norm_heads::NormHeadsKernels::FILE,
    &numbers::NumberKernels::FILE,
    &pack::PackKernels::FILE,
    &rmsnorm::RmsnormKernels::FILE,
    &rope::RopeKernels::FILE,
    &rope_store::RopeStoreKernels::FILE,
    &matvec::RoundKernels::FILE,
    &sample::SampleKernels::FILE,
    &selective_scan::SelectiveKernels::FILE,
    &sparsify::SparsifyKernels::FILE,
    &ssm_scan::SsmKernels::FILE,
    &streams::StreamKernels::FILE,
    &swiglu::SwigluKernels::FILE,
    &take_rows::TakeRowsKernels::FILE,
];
