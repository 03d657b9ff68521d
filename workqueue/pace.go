package workqueue

// DefaultAutoChunk is the size of automatic chunks before anything was learned of their endpoint.
const DefaultAutoChunk = 500
