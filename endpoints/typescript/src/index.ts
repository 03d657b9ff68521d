// SDK for Tranche services: see README.md.

export { type CallItem, type CallOptions, type CallResult, NoListenersError, UnansweredError, call, callList } from './call';
export { connect } from './connect';
export { type FlowOptions, handleFlow } from './flow';
export { FlowItem, Stage, Target, target } from './flowitem';
export { Chunk, Item, handleEach, handleList } from './handlers';
export type { EndpointOptions, ItemInfo, Work, Wrapper } from './job';
export { type EndpointStatus, Service, type ServiceOptions } from './service';
export { Binary, Failure, type Meta, type Trace } from './wire';
