// Package demo is tranche demo: the year-end statements of a small bank, gathered from three services and composed, on
// the real product.
//
// It starts a private PostgreSQL and fills a database for each service (package bankdata), damages three accounts, and
// then does what a person would do: it starts tranche serve, the services and a node with Go code of the bank's as
// processes of their own and types commands of the tranche program, which it shows. What those print is what the person
// sees. Then it breaks the movements of fifty accounts, repairs them and has just these made again; the ledgers of the
// services say whether anything else was. In the end it compares the exported statements, read back from the file, with
// the bank: what is printed in the PDFs, too.
//
// Guarantees: anything unequal is an error, an [UnequalError] that names it. Every process it starts has ended when
// [Run] returns, and on Linux also when it is killed. What it leaves behind is the statements, the plan and the logs,
// in the directory that it names. Any number of demos can run at once.
//
// Not its job: to do anything itself that a command of the product does.
//
// Concurrency: a call of [Run] is on its own.
package demo
