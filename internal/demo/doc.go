// Package demo is tranche demo: a year-end run over a hundred thousand accounts of a small bank, on the real product.
//
// It starts a private PostgreSQL, has pgbench create the bank and run its transactions, damages three accounts, and
// then does what a person would do: it starts tranche serve and a service as processes of their own and types commands
// of the tranche program, which it shows. What those print is what the person sees. In the end it compares the exported
// statements, read back from the file, with the bank.
//
// Guarantees: anything unequal is an error, an [UnequalError] that names it. Every process it starts has ended when
// [Run] returns, and on Linux also when it is killed. What it leaves behind is the statements and the logs, in the
// directory that it names. Any number of demos can run at once.
//
// Not its job: to do anything itself that a command of the product does.
//
// Concurrency: a call of [Run] is on its own.
package demo
