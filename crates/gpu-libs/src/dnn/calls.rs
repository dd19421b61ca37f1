//! MIOpen and cuDNN; longer than other files, because it is a table. NVIDIA's side is cuDNN's descriptor interface, which version 9 still has beside its graphs.

use std::ffi::c_void;

use gpu::foreign::Address;
use half::{bf16, f16};

pub(crate) use crate::table::{Handle, Host, HostMut, Int, LibraryChoice};
use crate::table::{Names, library, numbers};

library! {
    /// MIOpen | cuDNN
    Calls, role "neural network",
    amd Names {
        name: "MIOpen", sonames: &["libMIOpen.so.1"],
        status_name: "miopenGetErrorString", status_text: "", statuses: &[], last_words: "",
    },
    nvidia Names {
        name: "cuDNN", sonames: &["libcudnn.so.9"],
        status_name: "cudnnGetErrorString", status_text: "", statuses: &[], last_words: "cudnnGetLastErrorString",
    };
    plain {
        create           | "miopenCreate"                 | "cudnnCreate"                   | (handle: *mut Handle);
        destroy          | "miopenDestroy"                | "cudnnDestroy"                  | (handle: Handle);
        set_stream       | "miopenSetStream"              | "cudnnSetStream"                | (handle: Handle, stream: Handle);
        tensor_create    | "miopenCreateTensorDescriptor" | "cudnnCreateTensorDescriptor"   | (tensor: *mut Handle);
        tensor_destroy   | "miopenDestroyTensorDescriptor" | "cudnnDestroyTensorDescriptor" | (tensor: Handle);
        tensor_set       | "miopenSetTensorDescriptor"    | "cudnnSetTensorNdDescriptor"    | (tensor: Handle, number: LibraryChoice, n: Int, lengths: *const Int, strides: *const Int);
        filter_create    | "" | "cudnnCreateFilterDescriptor"  | (filter: *mut Handle);
        filter_destroy   | "" | "cudnnDestroyFilterDescriptor" | (filter: Handle);
        filter_set       | "" | "cudnnSetFilterNdDescriptor"   | (filter: Handle, number: LibraryChoice, layout: LibraryChoice, n: Int, lengths: *const Int);

        convolution_create   | "miopenCreateConvolutionDescriptor"  | "cudnnCreateConvolutionDescriptor"  | (convolution: *mut Handle);
        convolution_destroy  | "miopenDestroyConvolutionDescriptor" | "cudnnDestroyConvolutionDescriptor" | (convolution: Handle);
        convolution_groups   | "miopenSetConvolutionGroupCount"     | "cudnnSetConvolutionGroupCount"     | (convolution: Handle, n: Int);
        convolution_set_amd  | "miopenInitConvolutionNdDescriptor"  | "" | (convolution: Handle, n: Int, padding: *const Int, stride: *const Int, dilation: *const Int, mode: LibraryChoice);
        convolution_set_nvidia | "" | "cudnnSetConvolutionNdDescriptor" | (convolution: Handle, n: Int, padding: *const Int, stride: *const Int, dilation: *const Int, mode: LibraryChoice, sum: LibraryChoice);
        convolution_math     | "" | "cudnnSetConvolutionMathType" | (convolution: Handle, math: LibraryChoice);

        forward_count    | "miopenConvolutionForwardGetSolutionCount" | "" | (handle: Handle, w: Handle, x: Handle, convolution: Handle, y: Handle, n: *mut usize);
        forward_list     | "miopenConvolutionForwardGetSolution" | "" | (handle: Handle, w: Handle, x: Handle, convolution: Handle, y: Handle, limit: usize, n: *mut usize, solutions: *mut AmdSolution);
        forward_amd      | "miopenConvolutionForwardImmediate" | "" | (handle: Handle, w: Handle, w_at: Address, x: Handle, x_at: Address, convolution: Handle, y: Handle, y_at: Address, work: Address, bytes: usize, solution: u64);
        data_count       | "miopenConvolutionBackwardDataGetSolutionCount" | "" | (handle: Handle, dy: Handle, w: Handle, convolution: Handle, dx: Handle, n: *mut usize);
        data_list        | "miopenConvolutionBackwardDataGetSolution" | "" | (handle: Handle, dy: Handle, w: Handle, convolution: Handle, dx: Handle, limit: usize, n: *mut usize, solutions: *mut AmdSolution);
        data_amd         | "miopenConvolutionBackwardDataImmediate" | "" | (handle: Handle, dy: Handle, dy_at: Address, w: Handle, w_at: Address, convolution: Handle, dx: Handle, dx_at: Address, work: Address, bytes: usize, solution: u64);
        weights_count    | "miopenConvolutionBackwardWeightsGetSolutionCount" | "" | (handle: Handle, dy: Handle, x: Handle, convolution: Handle, dw: Handle, n: *mut usize);
        weights_list     | "miopenConvolutionBackwardWeightsGetSolution" | "" | (handle: Handle, dy: Handle, x: Handle, convolution: Handle, dw: Handle, limit: usize, n: *mut usize, solutions: *mut AmdSolution);
        weights_amd      | "miopenConvolutionBackwardWeightsImmediate" | "" | (handle: Handle, dy: Handle, dy_at: Address, x: Handle, x_at: Address, convolution: Handle, dw: Handle, dw_at: Address, work: Address, bytes: usize, solution: u64);

        forward_guess    | "" | "cudnnGetConvolutionForwardAlgorithm_v7" | (handle: Handle, x: Handle, w: Handle, convolution: Handle, y: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        forward_find     | "" | "cudnnFindConvolutionForwardAlgorithm" | (handle: Handle, x: Handle, w: Handle, convolution: Handle, y: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        forward_nvidia   | "" | "cudnnConvolutionForward" | (handle: Handle, alpha: Host, x: Handle, x_at: Address, w: Handle, w_at: Address, convolution: Handle, algorithm: LibraryChoice, work: Address, bytes: usize, beta: Host, y: Handle, y_at: Address);
        data_guess       | "" | "cudnnGetConvolutionBackwardDataAlgorithm_v7" | (handle: Handle, w: Handle, dy: Handle, convolution: Handle, dx: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        data_find        | "" | "cudnnFindConvolutionBackwardDataAlgorithm" | (handle: Handle, w: Handle, dy: Handle, convolution: Handle, dx: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        data_nvidia      | "" | "cudnnConvolutionBackwardData" | (handle: Handle, alpha: Host, w: Handle, w_at: Address, dy: Handle, dy_at: Address, convolution: Handle, algorithm: LibraryChoice, work: Address, bytes: usize, beta: Host, dx: Handle, dx_at: Address);
        weights_guess    | "" | "cudnnGetConvolutionBackwardFilterAlgorithm_v7" | (handle: Handle, x: Handle, dy: Handle, convolution: Handle, dw: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        weights_find     | "" | "cudnnFindConvolutionBackwardFilterAlgorithm" | (handle: Handle, x: Handle, dy: Handle, convolution: Handle, dw: Handle, limit: Int, n: *mut Int, found: *mut NvidiaSolution);
        weights_nvidia   | "" | "cudnnConvolutionBackwardFilter" | (handle: Handle, alpha: Host, x: Handle, x_at: Address, dy: Handle, dy_at: Address, convolution: Handle, algorithm: LibraryChoice, work: Address, bytes: usize, beta: Host, dw: Handle, dw_at: Address);
        bias_gradient    | "miopenConvolutionBackwardBias" | "cudnnConvolutionBackwardBias" | (handle: Handle, alpha: Host, dy: Handle, dy_at: Address, beta: Host, db: Handle, db_at: Address);

        problem_convolution | "miopenCreateConvProblem" | "" | (problem: *mut Handle, convolution: Handle, direction: LibraryChoice);
        problem_destroy  | "miopenDestroyProblem" | "" | (problem: Handle);
        problem_tensor   | "miopenSetProblemTensorDescriptor" | "" | (problem: Handle, role: LibraryChoice, tensor: Handle);
        find             | "miopenFindSolutions" | "" | (handle: Handle, problem: Handle, options: Handle, solutions: *mut Handle, n: *mut usize, limit: usize);
        solution_destroy | "miopenDestroySolution" | "" | (solution: Handle);
        solution_bytes   | "miopenGetSolutionWorkspaceSize" | "" | (solution: Handle, bytes: *mut usize);
        solution_time    | "miopenGetSolutionTime" | "" | (solution: Handle, ms: *mut f32);
        solution_run     | "miopenRunSolution" | "" | (handle: Handle, solution: Handle, n: usize, tensors: *const AmdArgument, work: Address, bytes: usize);

        softmax_amd      | "miopenSoftmaxForward_V2" | "" | (handle: Handle, alpha: Host, x: Handle, x_at: Address, beta: Host, y: Handle, y_at: Address, algorithm: LibraryChoice, mode: LibraryChoice);
        softmax_nvidia   | "" | "cudnnSoftmaxForward" | (handle: Handle, algorithm: LibraryChoice, mode: LibraryChoice, alpha: Host, x: Handle, x_at: Address, beta: Host, y: Handle, y_at: Address);
        softmax_back_amd | "miopenSoftmaxBackward_V2" | "" | (handle: Handle, alpha: Host, y: Handle, y_at: Address, dy: Handle, dy_at: Address, beta: Host, dx: Handle, dx_at: Address, algorithm: LibraryChoice, mode: LibraryChoice);
        softmax_back_nvidia | "" | "cudnnSoftmaxBackward" | (handle: Handle, algorithm: LibraryChoice, mode: LibraryChoice, alpha: Host, y: Handle, y_at: Address, dy: Handle, dy_at: Address, beta: Host, dx: Handle, dx_at: Address);

        activation_create  | "miopenCreateActivationDescriptor"  | "cudnnCreateActivationDescriptor"  | (activation: *mut Handle);
        activation_destroy | "miopenDestroyActivationDescriptor" | "cudnnDestroyActivationDescriptor" | (activation: Handle);
        activation_set_amd | "miopenSetActivationDescriptor" | "" | (activation: Handle, mode: LibraryChoice, alpha: f64, beta: f64, gamma: f64);
        activation_set_nvidia | "" | "cudnnSetActivationDescriptor" | (activation: Handle, mode: LibraryChoice, nan: LibraryChoice, coefficient: f64);
        activation_swish | "" | "cudnnSetActivationDescriptorSwishBeta" | (activation: Handle, beta: f64);
        activation       | "miopenActivationForward"  | "cudnnActivationForward"  | (handle: Handle, activation: Handle, alpha: Host, x: Handle, x_at: Address, beta: Host, y: Handle, y_at: Address);
        activation_back  | "miopenActivationBackward" | "cudnnActivationBackward" | (handle: Handle, activation: Handle, alpha: Host, y: Handle, y_at: Address, dy: Handle, dy_at: Address, x: Handle, x_at: Address, beta: Host, dx: Handle, dx_at: Address);

        pooling_create   | "miopenCreatePoolingDescriptor"  | "cudnnCreatePoolingDescriptor"  | (pooling: *mut Handle);
        pooling_destroy  | "miopenDestroyPoolingDescriptor" | "cudnnDestroyPoolingDescriptor" | (pooling: Handle);
        pooling_set_amd  | "miopenSetNdPoolingDescriptor" | "" | (pooling: Handle, mode: LibraryChoice, n: Int, window: *const Int, padding: *const Int, stride: *const Int);
        pooling_set_nvidia | "" | "cudnnSetPoolingNdDescriptor" | (pooling: Handle, mode: LibraryChoice, nan: LibraryChoice, n: Int, window: *const Int, padding: *const Int, stride: *const Int);
        pooling_index    | "miopenSetPoolingIndexType" | "" | (pooling: Handle, index: LibraryChoice);
        pooling_bytes    | "miopenPoolingGetWorkSpaceSizeV2" | "" | (pooling: Handle, y: Handle, bytes: *mut usize);
        pooling_amd      | "miopenPoolingForward" | "" | (handle: Handle, pooling: Handle, alpha: Host, x: Handle, x_at: Address, beta: Host, y: Handle, y_at: Address, keep: bool, work: Address, bytes: usize);
        pooling_nvidia   | "" | "cudnnPoolingForward" | (handle: Handle, pooling: Handle, alpha: Host, x: Handle, x_at: Address, beta: Host, y: Handle, y_at: Address);
        pooling_back_amd | "miopenPoolingBackward" | "" | (handle: Handle, pooling: Handle, alpha: Host, y: Handle, y_at: Address, dy: Handle, dy_at: Address, x: Handle, x_at: Address, beta: Host, dx: Handle, dx_at: Address, work: Address);
        pooling_back_nvidia | "" | "cudnnPoolingBackward" | (handle: Handle, pooling: Handle, alpha: Host, y: Handle, y_at: Address, dy: Handle, dy_at: Address, x: Handle, x_at: Address, beta: Host, dx: Handle, dx_at: Address);

        batch_norm_derive | "miopenDeriveBNTensorDescriptor" | "cudnnDeriveBNTensorDescriptor" | (parameters: Handle, x: Handle, mode: LibraryChoice);
        batch_norm_train | "miopenBatchNormalizationForwardTraining" | "cudnnBatchNormalizationForwardTraining" | (handle: Handle, mode: LibraryChoice, alpha: Host, beta: Host, x: Handle, x_at: Address, y: Handle, y_at: Address, parameters: Handle, scale: Address, bias: Address, factor: f64, mean: Address, variance: Address, epsilon: f64, saved_mean: Address, saved_deviation: Address);
        batch_norm_infer | "miopenBatchNormalizationForwardInference" | "cudnnBatchNormalizationForwardInference" | (handle: Handle, mode: LibraryChoice, alpha: Host, beta: Host, x: Handle, x_at: Address, y: Handle, y_at: Address, parameters: Handle, scale: Address, bias: Address, mean: Address, variance: Address, epsilon: f64);
        batch_norm_back  | "miopenBatchNormalizationBackward" | "cudnnBatchNormalizationBackward" | (handle: Handle, mode: LibraryChoice, alpha: Host, beta: Host, alpha_parameters: Host, beta_parameters: Host, x: Handle, x_at: Address, dy: Handle, dy_at: Address, dx: Handle, dx_at: Address, parameters: Handle, scale: Address, scale_gradient: Address, bias_gradient: Address, epsilon: f64, saved_mean: Address, saved_deviation: Address);

        layer_norm       | "miopenLayerNormForward" | "" | (handle: Handle, mode: LibraryChoice, x: Handle, x_at: Address, weight: Handle, weight_at: Address, bias: Handle, bias_at: Address, epsilon: f32, first: i32, y: Handle, y_at: Address, mean: Handle, mean_at: Address, deviation: Handle, deviation_at: Address);
        layer_norm_back_bytes | "miopenGetLayerNormBackwardWorkspaceSize" | "" | (handle: Handle, mode: LibraryChoice, dy: Handle, x: Handle, weight: Handle, mean: Handle, deviation: Handle, first: i32, dx: Handle, dw: Handle, db: Handle, bytes: *mut usize);
        layer_norm_back  | "miopenLayerNormBackward" | "" | (handle: Handle, mode: LibraryChoice, work: Address, bytes: usize, dy: Handle, dy_at: Address, x: Handle, x_at: Address, weight: Handle, weight_at: Address, mean: Handle, mean_at: Address, deviation: Handle, deviation_at: Address, first: i32, dx: Handle, dx_at: Address, dw: Handle, dw_at: Address, db: Handle, db_at: Address);

        reduce_create    | "miopenCreateReduceTensorDescriptor"  | "cudnnCreateReduceTensorDescriptor"  | (reduction: *mut Handle);
        reduce_destroy   | "miopenDestroyReduceTensorDescriptor" | "cudnnDestroyReduceTensorDescriptor" | (reduction: Handle);
        reduce_set       | "miopenSetReduceTensorDescriptor"     | "cudnnSetReduceTensorDescriptor"     | (reduction: Handle, op: LibraryChoice, number: LibraryChoice, nan: LibraryChoice, indices: LibraryChoice, index: LibraryChoice);
        reduce_bytes     | "miopenGetReductionWorkspaceSize"     | "cudnnGetReductionWorkspaceSize"     | (handle: Handle, reduction: Handle, x: Handle, y: Handle, bytes: *mut usize);
        reduce_index_bytes | "miopenGetReductionIndicesSize"     | "cudnnGetReductionIndicesSize"       | (handle: Handle, reduction: Handle, x: Handle, y: Handle, bytes: *mut usize);
        reduce           | "miopenReduceTensor"                  | "cudnnReduceTensor"                  | (handle: Handle, reduction: Handle, indices: Address, index_bytes: usize, work: Address, bytes: usize, alpha: Host, x: Handle, x_at: Address, beta: Host, y: Handle, y_at: Address);

        dropout_create   | "miopenCreateDropoutDescriptor"  | "cudnnCreateDropoutDescriptor"  | (dropout: *mut Handle);
        dropout_destroy  | "miopenDestroyDropoutDescriptor" | "cudnnDestroyDropoutDescriptor" | (dropout: Handle);
        dropout_state_bytes | "miopenDropoutGetStatesSize"  | "cudnnDropoutGetStatesSize"     | (handle: Handle, bytes: *mut usize);
        dropout_mask_bytes | "miopenDropoutGetReserveSpaceSize" | "cudnnDropoutGetReserveSpaceSize" | (x: Handle, bytes: *mut usize);
        dropout_set_amd  | "miopenSetDropoutDescriptor" | "" | (dropout: Handle, handle: Handle, probability: f32, states: Address, bytes: usize, seed: u64, given_mask: bool, evolve: bool, method: LibraryChoice);
        dropout_set_nvidia | "" | "cudnnSetDropoutDescriptor" | (dropout: Handle, handle: Handle, probability: f32, states: Address, bytes: usize, seed: u64);
        dropout_amd      | "miopenDropoutForward" | "" | (handle: Handle, dropout: Handle, noise: Handle, x: Handle, x_at: Address, y: Handle, y_at: Address, mask: Address, bytes: usize);
        dropout_nvidia   | "" | "cudnnDropoutForward" | (handle: Handle, dropout: Handle, x: Handle, x_at: Address, y: Handle, y_at: Address, mask: Address, bytes: usize);
        dropout_back_amd | "miopenDropoutBackward" | "" | (handle: Handle, dropout: Handle, noise: Handle, dy: Handle, dy_at: Address, dx: Handle, dx_at: Address, mask: Address, bytes: usize);
        dropout_back_nvidia | "" | "cudnnDropoutBackward" | (handle: Handle, dropout: Handle, dy: Handle, dy_at: Address, dx: Handle, dx_at: Address, mask: Address, bytes: usize);

        rnn_create       | "miopenCreateRNNDescriptor"  | "cudnnCreateRNNDescriptor"  | (rnn: *mut Handle);
        rnn_destroy      | "miopenDestroyRNNDescriptor" | "cudnnDestroyRNNDescriptor" | (rnn: Handle);
        rnn_set_amd      | "miopenSetRNNDescriptor" | "" | (rnn: Handle, hidden: Int, layers: Int, input: LibraryChoice, direction: LibraryChoice, cell: LibraryChoice, bias: LibraryChoice, algorithm: LibraryChoice, number: LibraryChoice);
        rnn_set_nvidia   | "" | "cudnnSetRNNDescriptor_v8" | (rnn: Handle, algorithm: LibraryChoice, cell: LibraryChoice, bias: LibraryChoice, direction: LibraryChoice, input: LibraryChoice, number: LibraryChoice, sum: LibraryChoice, math: LibraryChoice, x_size: i32, hidden: i32, projection: i32, layers: i32, dropout: Handle, flags: u32);
        rnn_padding      | "miopenSetRNNPaddingMode" | "" | (rnn: Handle, mode: LibraryChoice);
        sequence_create  | "miopenCreateSeqTensorDescriptor"  | "cudnnCreateRNNDataDescriptor"  | (sequence: *mut Handle);
        sequence_destroy | "miopenDestroySeqTensorDescriptor" | "cudnnDestroyRNNDataDescriptor" | (sequence: Handle);
        sequence_set     | "miopenSetRNNDataSeqTensorDescriptor" | "cudnnSetRNNDataDescriptor" | (sequence: Handle, number: LibraryChoice, layout: LibraryChoice, steps: Int, batch: Int, size: Int, lengths: *const Int, padding: HostMut);
        rnn_bytes_amd    | "miopenGetRNNTempSpaceSizes" | "" | (handle: Handle, rnn: Handle, x: Handle, pass: LibraryChoice, work: *mut usize, kept: *mut usize);
        rnn_bytes_nvidia | "" | "cudnnGetRNNTempSpaceSizes" | (handle: Handle, rnn: Handle, pass: LibraryChoice, x: Handle, work: *mut usize, kept: *mut usize);
        rnn_weight_bytes_amd | "miopenGetRNNParamsSize" | "" | (handle: Handle, rnn: Handle, x: Handle, bytes: *mut usize, number: LibraryChoice);
        rnn_weight_bytes_nvidia | "" | "cudnnGetRNNWeightSpaceSize" | (handle: Handle, rnn: Handle, bytes: *mut usize);
        rnn_matrix_amd   | "miopenGetRNNLayerParamOffset" | "" | (rnn: Handle, layer: Int, x: Handle, id: Int, matrix: Handle, offset: *mut usize);
        rnn_bias_amd     | "miopenGetRNNLayerBiasOffset" | "" | (rnn: Handle, layer: Int, x: Handle, id: Int, bias: Handle, offset: *mut usize);
        rnn_part_nvidia  | "" | "cudnnGetRNNWeightParams" | (handle: Handle, rnn: Handle, layer: i32, bytes: usize, weights: Address, id: i32, matrix: Handle, matrix_at: *mut Address, bias: Handle, bias_at: *mut Address);
        rnn_amd          | "miopenRNNForward" | "" | (handle: Handle, rnn: Handle, pass: LibraryChoice, x: Handle, x_at: Address, h: Handle, h_at: Address, hy: Address, c: Handle, c_at: Address, cy: Address, y: Handle, y_at: Address, w: Address, w_bytes: usize, work: Address, bytes: usize, kept: Address, kept_bytes: usize);
        rnn_nvidia       | "" | "cudnnRNNForward" | (handle: Handle, rnn: Handle, pass: LibraryChoice, lengths: Address, x: Handle, x_at: Address, y: Handle, y_at: Address, h: Handle, h_at: Address, hy: Address, c: Handle, c_at: Address, cy: Address, w_bytes: usize, w: Address, bytes: usize, work: Address, kept_bytes: usize, kept: Address);
        rnn_back_amd     | "miopenRNNBackwardSeqData" | "" | (handle: Handle, rnn: Handle, y: Handle, y_at: Address, dy: Address, h: Handle, h_at: Address, dhy: Address, dhx: Address, c: Handle, c_at: Address, dcy: Address, dcx: Address, x: Handle, dx: Address, w: Address, w_bytes: usize, work: Address, bytes: usize, kept: Address, kept_bytes: usize);
        rnn_back_nvidia  | "" | "cudnnRNNBackwardData_v8" | (handle: Handle, rnn: Handle, lengths: Address, y: Handle, y_at: Address, dy: Address, x: Handle, dx: Address, h: Handle, h_at: Address, dhy: Address, dhx: Address, c: Handle, c_at: Address, dcy: Address, dcx: Address, w_bytes: usize, w: Address, bytes: usize, work: Address, kept_bytes: usize, kept: Address);
        rnn_weights_amd  | "miopenRNNBackwardWeightsSeqTensor" | "" | (handle: Handle, rnn: Handle, x: Handle, x_at: Address, h: Handle, h_at: Address, y: Handle, y_at: Address, dw: Address, w_bytes: usize, work: Address, bytes: usize, kept: Address, kept_bytes: usize);
        rnn_weights_nvidia | "" | "cudnnRNNBackwardWeights_v8" | (handle: Handle, rnn: Handle, add: LibraryChoice, lengths: Address, x: Handle, x_at: Address, h: Handle, h_at: Address, y: Handle, y_at: Address, w_bytes: usize, dw: Address, bytes: usize, work: Address, kept_bytes: usize, kept: Address);

        mha_create       | "miopenCreateMhaDescriptor" | "" | (attention: *mut Handle);
        mha_set          | "miopenSetMhaDescriptor" | "" | (attention: Handle, scale: f32);
        mha_problem      | "miopenCreateMhaProblem" | "" | (problem: *mut Handle, attention: Handle, direction: LibraryChoice);
        attention_create  | "" | "cudnnCreateAttnDescriptor"  | (attention: *mut Handle);
        attention_destroy | "" | "cudnnDestroyAttnDescriptor" | (attention: Handle);
        attention_set     | "" | "cudnnSetAttnDescriptor" | (attention: Handle, mode: u32, heads: Int, scale: f64, number: LibraryChoice, sum: LibraryChoice, math: LibraryChoice, dropout: Handle, dropout_after: Handle, q: Int, k: Int, v: Int, q_projected: Int, k_projected: Int, v_projected: Int, y_projected: Int, q_steps: Int, kv_steps: Int, batch: Int, beams: Int);
        attention_bytes   | "" | "cudnnGetMultiHeadAttnBuffers" | (handle: Handle, attention: Handle, weights: *mut usize, work: *mut usize, kept: *mut usize);
        steps_create     | "" | "cudnnCreateSeqDataDescriptor"  | (steps: *mut Handle);
        steps_destroy    | "" | "cudnnDestroySeqDataDescriptor" | (steps: Handle);
        steps_set        | "" | "cudnnSetSeqDataDescriptor" | (steps: Handle, number: LibraryChoice, n: Int, lengths: *const Int, axes: *const LibraryChoice, n_sequences: usize, sequences: *const Int, padding: HostMut);
        attention        | "" | "cudnnMultiHeadAttnForward" | (handle: Handle, attention: Handle, step: Int, low: *const Int, high: *const Int, y_lengths: Address, kv_lengths: Address, q: Handle, q_at: Address, residual: Address, k: Handle, k_at: Address, v: Handle, v_at: Address, y: Handle, y_at: Address, w_bytes: usize, w: Address, bytes: usize, work: Address, kept_bytes: usize, kept: Address);
        attention_back   | "" | "cudnnMultiHeadAttnBackwardData" | (handle: Handle, attention: Handle, low: *const Int, high: *const Int, y_lengths: Address, kv_lengths: Address, dy: Handle, dy_at: Address, dq: Handle, dq_at: Address, q_at: Address, dk: Handle, dk_at: Address, k_at: Address, dv: Handle, dv_at: Address, v_at: Address, w_bytes: usize, w: Address, bytes: usize, work: Address, kept_bytes: usize, kept: Address);

        fusion_create    | "miopenCreateFusionPlan"  | "" | (plan: *mut Handle, direction: LibraryChoice, x: Handle);
        fusion_destroy   | "miopenDestroyFusionPlan" | "" | (plan: Handle);
        fusion_compile   | "miopenCompileFusionPlan" | "" | (handle: Handle, plan: Handle);
        fusion_bytes     | "miopenFusionPlanGetWorkSpaceSize" | "" | (handle: Handle, plan: Handle, bytes: *mut usize, algorithm: LibraryChoice);
        fused_convolution | "miopenCreateOpConvForward" | "" | (plan: Handle, op: *mut Handle, convolution: Handle, w: Handle);
        fused_bias       | "miopenCreateOpBiasForward" | "" | (plan: Handle, op: *mut Handle, bias: Handle);
        fused_activation | "miopenCreateOpActivationForward" | "" | (plan: Handle, op: *mut Handle, mode: LibraryChoice);
        fused_batch_norm | "miopenCreateOpBatchNormInference" | "" | (plan: Handle, op: *mut Handle, mode: LibraryChoice, parameters: Handle);
        operands_create  | "miopenCreateOperatorArgs"  | "" | (operands: *mut Handle);
        operands_destroy | "miopenDestroyOperatorArgs" | "" | (operands: Handle);
        operands_convolution | "miopenSetOpArgsConvForward" | "" | (operands: Handle, op: Handle, alpha: Host, beta: Host, w: Address);
        operands_bias    | "miopenSetOpArgsBiasForward" | "" | (operands: Handle, op: Handle, alpha: Host, beta: Host, bias: Address);
        operands_activation | "miopenSetOpArgsActivForward" | "" | (operands: Handle, op: Handle, alpha: Host, beta: Host, a: f64, b: f64, c: f64);
        operands_batch_norm | "miopenSetOpArgsBatchNormInference" | "" | (operands: Handle, op: Handle, alpha: Host, beta: Host, scale: Address, bias: Address, mean: Address, variance: Address, epsilon: f64);
        fusion_run       | "miopenExecuteFusionPlan_v2" | "" | (handle: Handle, plan: Handle, x: Handle, x_at: Address, y: Handle, y_at: Address, operands: Handle, work: Address, bytes: usize);
        fused_nvidia     | "" | "cudnnConvolutionBiasActivationForward" | (handle: Handle, alpha: Host, x: Handle, x_at: Address, w: Handle, w_at: Address, convolution: Handle, algorithm: LibraryChoice, work: Address, bytes: usize, beta: Host, z: Handle, z_at: Address, bias: Handle, bias_at: Address, activation: Handle, y: Handle, y_at: Address);
    }
    typed {}
}

/// `miopenConvSolution_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AmdSolution {
    pub ms: f32,
    pub bytes: usize,
    pub solution: u64,
    pub algorithm: LibraryChoice,
}

/// `miopenTensorArgument_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AmdArgument {
    pub role: LibraryChoice,
    /// Null: the tensor is the one the problem was described with.
    pub tensor: *mut Handle,
    pub at: *mut c_void,
}

/// `cudnnConvolutionFwdAlgoPerf_t` and its two counterparts, which have the same fields.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct NvidiaSolution {
    pub algorithm: LibraryChoice,
    pub status: LibraryChoice,
    pub ms: f32,
    pub bytes: usize,
    pub determinism: LibraryChoice,
    pub math: LibraryChoice,
    pub reserved: [Int; 3],
}

/// Structs passed to the library, for the check against the headers: (C++ type, bytes).
#[doc(hidden)]
pub const AMD_SIZES: &[(&str, usize)] =
    &[("miopenConvSolution_t", size_of::<AmdSolution>()), ("miopenTensorArgument_t", size_of::<AmdArgument>())];
#[doc(hidden)]
pub const NVIDIA_SIZES: &[(&str, usize)] = &[
    ("cudnnConvolutionFwdAlgoPerf_t", size_of::<NvidiaSolution>()),
    ("cudnnConvolutionBwdDataAlgoPerf_t", size_of::<NvidiaSolution>()),
    ("cudnnConvolutionBwdFilterAlgoPerf_t", size_of::<NvidiaSolution>()),
];

numbers! {
    /// What a tensor's elements are.
    pub enum DataType {
        F32 = "miopenFloat" 1 | "CUDNN_DATA_FLOAT" 0;
        F16 = "miopenHalf" 0 | "CUDNN_DATA_HALF" 2;
        BF16 = "miopenBFloat16" 5 | "CUDNN_DATA_BFLOAT16" 9;
    }
    pub(crate) enum FilterLayout {
        ChannelsFirst = "" 0 | "CUDNN_TENSOR_NCHW" 0;
        ChannelsLast = "" 0 | "CUDNN_TENSOR_NHWC" 1;
    }
    /// What neural networks call a convolution is a correlation: the filter is not turned over.
    pub(crate) enum ConvolutionMode {
        Correlation = "miopenConvolution" 0 | "CUDNN_CROSS_CORRELATION" 1;
    }
    /// Matrix units are allowed wherever they take the numbers as they are.
    pub(crate) enum MathType {
        Default = "" 0 | "CUDNN_DEFAULT_MATH" 0;
        /// No rounding of f32 to tf32.
        Fma = "" 0 | "CUDNN_FMA_MATH" 3;
    }
    /// Which of a convolution's three products is computed.
    pub enum Pass {
        Forward = "miopenProblemDirectionForward" 0 | "" 0;
        BackwardData = "miopenProblemDirectionBackward" 1 | "" 0;
        BackwardWeights = "miopenProblemDirectionBackwardWeights" 2 | "" 0;
    }
    /// Softmax itself or its logarithm; both subtract the largest number first.
    pub enum SoftmaxKind {
        Probabilities = "MIOPEN_SOFTMAX_ACCURATE" 1 | "CUDNN_SOFTMAX_ACCURATE" 1;
        Logarithms = "MIOPEN_SOFTMAX_LOG" 2 | "CUDNN_SOFTMAX_LOG" 2;
    }
    /// What adds up to one.
    pub enum SoftmaxOver {
        /// The channels of each place.
        Channels = "MIOPEN_SOFTMAX_MODE_CHANNEL" 1 | "CUDNN_SOFTMAX_MODE_CHANNEL" 1;
        /// All numbers of each member of the batch.
        All = "MIOPEN_SOFTMAX_MODE_INSTANCE" 0 | "CUDNN_SOFTMAX_MODE_INSTANCE" 0;
    }
    pub(crate) enum ActivationMode {
        Identity = "miopenActivationPASTHRU" 0 | "CUDNN_ACTIVATION_IDENTITY" 5;
        Sigmoid = "miopenActivationLOGISTIC" 1 | "CUDNN_ACTIVATION_SIGMOID" 0;
        Tanh = "miopenActivationTANH" 2 | "CUDNN_ACTIVATION_TANH" 2;
        Relu = "miopenActivationRELU" 3 | "CUDNN_ACTIVATION_RELU" 1;
        ClippedRelu = "miopenActivationCLIPPEDRELU" 7 | "CUDNN_ACTIVATION_CLIPPED_RELU" 3;
        Elu = "miopenActivationELU" 9 | "CUDNN_ACTIVATION_ELU" 4;
        LeakyRelu = "miopenActivationLEAKYRELU" 8 | "" 0;
        Softplus = "miopenActivationSOFTRELU" 4 | "" 0;
        Abs = "miopenActivationABS" 5 | "" 0;
        Swish = "" 0 | "CUDNN_ACTIVATION_SWISH" 6;
    }
    pub(crate) enum Nan {
        Propagate = "MIOPEN_PROPAGATE_NAN" 1 | "CUDNN_PROPAGATE_NAN" 1;
    }
    /// What a window of a pooling becomes.
    pub enum PoolingMode {
        Max = "miopenPoolingMax" 0 | "CUDNN_POOLING_MAX" 0;
        /// The mean of what is in the window, without padding.
        Average = "miopenPoolingAverage" 1 | "CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING" 2;
        /// The mean with the padding's zeros.
        AverageWithPadding = "miopenPoolingAverageInclusive" 2 | "CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING" 1;
    }
    pub(crate) enum PoolingIndex {
        U32 = "miopenIndexUint32" 2 | "" 0;
    }
    /// What has a mean and a variance of its own.
    pub enum BatchNormMode {
        /// Each channel, over the batch and space.
        Channels = "miopenBNSpatial" 1 | "CUDNN_BATCHNORM_SPATIAL" 1;
        /// Each place of each channel, over the batch.
        Places = "miopenBNPerActivation" 0 | "CUDNN_BATCHNORM_PER_ACTIVATION" 0;
    }
    pub(crate) enum LayerNormMode {
        WeightBias = "MIOPEN_WEIGHT_BIAS" 1 | "" 0;
    }
    /// What many numbers become one by.
    pub enum Reduction {
        Sum = "MIOPEN_REDUCE_TENSOR_ADD" 0 | "CUDNN_REDUCE_TENSOR_ADD" 0;
        Product = "MIOPEN_REDUCE_TENSOR_MUL" 1 | "CUDNN_REDUCE_TENSOR_MUL" 1;
        Min = "MIOPEN_REDUCE_TENSOR_MIN" 2 | "CUDNN_REDUCE_TENSOR_MIN" 2;
        Max = "MIOPEN_REDUCE_TENSOR_MAX" 3 | "CUDNN_REDUCE_TENSOR_MAX" 3;
        /// The largest of their absolute values.
        MaxAbs = "MIOPEN_REDUCE_TENSOR_AMAX" 4 | "CUDNN_REDUCE_TENSOR_AMAX" 4;
        Mean = "MIOPEN_REDUCE_TENSOR_AVG" 5 | "CUDNN_REDUCE_TENSOR_AVG" 5;
        /// The sum of their absolute values.
        SumAbs = "MIOPEN_REDUCE_TENSOR_NORM1" 6 | "CUDNN_REDUCE_TENSOR_NORM1" 6;
        /// The square root of the sum of their squares.
        Norm = "MIOPEN_REDUCE_TENSOR_NORM2" 7 | "CUDNN_REDUCE_TENSOR_NORM2" 7;
    }
    pub(crate) enum ReductionIndices {
        None = "MIOPEN_REDUCE_TENSOR_NO_INDICES" 0 | "CUDNN_REDUCE_TENSOR_NO_INDICES" 0;
        Flat = "MIOPEN_REDUCE_TENSOR_FLATTENED_INDICES" 1 | "CUDNN_REDUCE_TENSOR_FLATTENED_INDICES" 1;
    }
    pub(crate) enum ReductionIndex {
        U32 = "MIOPEN_32BIT_INDICES" 0 | "CUDNN_32BIT_INDICES" 0;
    }
    pub(crate) enum DropoutMethod {
        Xorwow = "MIOPEN_RNG_PSEUDO_XORWOW" 0 | "" 0;
    }
    pub(crate) enum Role {
        X = "miopenTensorConvolutionX" 1 | "" 0;
        W = "miopenTensorConvolutionW" 2 | "" 0;
        Y = "miopenTensorConvolutionY" 3 | "" 0;
    }
    /// What a recurrent network computes in each step.
    pub enum RnnCell {
        /// h' = max(0, W x + R h + b)
        Relu = "miopenRNNRELU" 0 | "CUDNN_RNN_RELU" 0;
        /// h' = tanh(W x + R h + b)
        Tanh = "miopenRNNTANH" 1 | "CUDNN_RNN_TANH" 1;
        /// Long short-term memory.
        Lstm = "miopenLSTM" 2 | "CUDNN_LSTM" 2;
        /// Gated recurrent units, with the reset gate after the product with h.
        Gru = "miopenGRU" 3 | "CUDNN_GRU" 3;
    }
    /// Which way a recurrent network goes through its sequences.
    pub enum RnnDirection {
        OneWay = "miopenRNNunidirection" 0 | "CUDNN_UNIDIRECTIONAL" 0;
        /// Both ways; the results lie beside each other.
        BothWays = "miopenRNNbidirection" 1 | "CUDNN_BIDIRECTIONAL" 1;
    }
    /// Whether a recurrent network has biases.
    pub enum RnnBias {
        None = "miopenRNNNoBias" 0 | "CUDNN_RNN_NO_BIAS" 0;
        /// One beside each product, with x and with h.
        Two = "miopenRNNwithBias" 1 | "CUDNN_RNN_DOUBLE_BIAS" 2;
    }
    pub(crate) enum RnnInput {
        Linear = "miopenRNNlinear" 0 | "CUDNN_LINEAR_INPUT" 0;
    }
    pub(crate) enum RnnAlgorithm {
        Default = "miopenRNNdefault" 0 | "CUDNN_RNN_ALGO_STANDARD" 0;
    }
    pub(crate) enum RnnPass {
        Training = "miopenRNNTraining" 0 | "CUDNN_FWD_MODE_TRAINING" 1;
        Inference = "miopenRNNInference" 1 | "CUDNN_FWD_MODE_INFERENCE" 0;
    }
    pub(crate) enum RnnLayout {
        StepsFirst = "miopenRNNDataSeqMajorPadded" 2 | "CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED" 0;
    }
    pub(crate) enum RnnPadding {
        Padded = "miopenRNNIOWithPadding" 1 | "CUDNN_RNN_PADDED_IO_ENABLED" 1;
    }
    pub(crate) enum WeightGradient {
        Add = "" 0 | "CUDNN_WGRAD_MODE_ADD" 0;
    }
    /// A dimension of cuDNN's sequences.
    pub(crate) enum StepsAxis {
        Time = "" 0 | "CUDNN_SEQDATA_TIME_DIM" 0;
        Batch = "" 0 | "CUDNN_SEQDATA_BATCH_DIM" 1;
        Beam = "" 0 | "CUDNN_SEQDATA_BEAM_DIM" 2;
        Vector = "" 0 | "CUDNN_SEQDATA_VECT_DIM" 3;
    }
    /// What MIOpen's attention reads and writes.
    pub(crate) enum AttentionRole {
        K = "miopenTensorMhaK" 4 | "" 0;
        Q = "miopenTensorMhaQ" 5 | "" 0;
        V = "miopenTensorMhaV" 6 | "" 0;
        DescaleK = "miopenTensorMhaDescaleK" 7 | "" 0;
        DescaleQ = "miopenTensorMhaDescaleQ" 8 | "" 0;
        DescaleV = "miopenTensorMhaDescaleV" 9 | "" 0;
        DescaleS = "miopenTensorMhaDescaleS" 10 | "" 0;
        ScaleS = "miopenTensorMhaScaleS" 11 | "" 0;
        ScaleO = "miopenTensorMhaScaleO" 12 | "" 0;
        DropoutProbability = "miopenTensorMhaDropoutProbability" 13 | "" 0;
        DropoutSeed = "miopenTensorMhaDropoutSeed" 14 | "" 0;
        DropoutOffset = "miopenTensorMhaDropoutOffset" 15 | "" 0;
        O = "miopenTensorMhaO" 16 | "" 0;
        AmaxO = "miopenTensorMhaAmaxO" 17 | "" 0;
        AmaxS = "miopenTensorMhaAmaxS" 18 | "" 0;
        M = "miopenTensorMhaM" 19 | "" 0;
        ZInv = "miopenTensorMhaZInv" 20 | "" 0;
        DO = "miopenTensorMhaDO" 21 | "" 0;
        DescaleO = "miopenTensorMhaDescaleO" 22 | "" 0;
        DescaleDO = "miopenTensorMhaDescaleDO" 23 | "" 0;
        DescaleDS = "miopenTensorMhaDescaleDS" 24 | "" 0;
        ScaleDS = "miopenTensorMhaScaleDS" 25 | "" 0;
        ScaleDQ = "miopenTensorMhaScaleDQ" 26 | "" 0;
        ScaleDK = "miopenTensorMhaScaleDK" 27 | "" 0;
        ScaleDV = "miopenTensorMhaScaleDV" 28 | "" 0;
        DQ = "miopenTensorMhaDQ" 29 | "" 0;
        DK = "miopenTensorMhaDK" 30 | "" 0;
        DV = "miopenTensorMhaDV" 31 | "" 0;
        AmaxDQ = "miopenTensorMhaAmaxDQ" 32 | "" 0;
        AmaxDK = "miopenTensorMhaAmaxDK" 33 | "" 0;
        AmaxDV = "miopenTensorMhaAmaxDV" 34 | "" 0;
        AmaxDS = "miopenTensorMhaAmaxDS" 35 | "" 0;
    }
    /// What attention's seeds are; no tensor of this crate is.
    pub(crate) enum IndexType {
        I64 = "miopenInt64" 9 | "" 0;
    }
    pub(crate) enum FusionDirection {
        Vertical = "miopenVerticalFusion" 0 | "" 0;
    }
    pub(crate) enum FusedAlgorithm {
        Direct = "miopenConvolutionFwdAlgoDirect" 1 | "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM" 1;
    }
}

/// A number that both libraries compute networks with: `f32`, `f16` or `bf16`. Scale factors and sums are f32.
pub trait NetworkNumber: gpu::Element {
    const TYPE: DataType;
}

impl NetworkNumber for f32 {
    const TYPE: DataType = DataType::F32;
}

impl NetworkNumber for f16 {
    const TYPE: DataType = DataType::F16;
}

impl NetworkNumber for bf16 {
    const TYPE: DataType = DataType::BF16;
}
