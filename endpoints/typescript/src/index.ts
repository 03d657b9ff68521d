// Services for Tranche: see README.md.

export { type CallItem, type CallOptions, type CallResult, NoListenersError, UnansweredError, call, callList } from './call';
export { connect } from './connect';
export { FlowItem, type FlowOptions, Stage, Target, handleFlow, target } from './flow';
export { Chunk, Item, handleEach, handleList } from './handlers';
export type { EndpointOptions, ItemInfo, Work, Wrapper } from './job';
export { type EndpointStatus, Service, type ServiceOptions } from './service';
export { Binary, Failure, type Meta, type Trace } from './wire';
