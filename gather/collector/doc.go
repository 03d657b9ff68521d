// Package collector reads what people write of collectors: how operations are gathered by their keys, and flushed to an
// endpoint in lists.
//
// [Parse] reads a collector from YAML, or JSON, into what the store keeps, with every default filled in, and says where
// in it something is wrong. [Key] says which key an operation belongs to.
//
// Not its job: the database, and flushing anything.
//
// Concurrency: it has no state.
package collector
