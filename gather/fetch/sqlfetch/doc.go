// Package sqlfetch queries other databases for the parts of a chunk: one query with the chunk's keys, whose rows are
// mapped back by a key column. It is what steps of kind sql do.
//
// Guarantees:
//
//   - A query only reads. It runs alone in a READ ONLY transaction that is always rolled back, as a table expression
//     within a statement of ours, by a role that is no superuser unless the operator says so.
//   - It ends: by a statement_timeout in the database, and by the chunk's time. The operator's file bounds time, rows,
//     bytes and connections of a source, whatever a plan says. A row that is too large does not reach this node.
//   - Neither addresses nor passwords of a database stand in an error.
//   - Errors that a smaller chunk may avoid, as of a key that the query cannot take, are the chunk's, which is halved;
//     errors of the query itself are those of all items, at once; those that pass are tried again.
//
// Not its job: tries, which the node makes by the codes of the errors; uploads of items from a query.
//
// Concurrency: a Client is for a whole node, and safe for concurrent use.
package sqlfetch
