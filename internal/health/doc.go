// Package health says what a person must see to: conditions of runs, endpoints, nodes, streams and disks, each with its
// severity, since when it has been so, and what helps.
//
// A [Watch] looks at PostgreSQL, NATS and the machine at most every few seconds, however many ask, and answers within
// a fraction of a second from what it saw last when a look takes longer. It changes nothing but two tables:
// health_condition keeps since when something has been so where nothing else tells it, over looks, servers and
// restarts, and what a server says of itself that no other one can see, so that all of them show it; and health_mark,
// whether what people have put aside has got worse. When PostgreSQL or NATS is away that is a condition like any
// other, and what is known without it is said.
//
// What people have put aside, by workqueue/health, stands in a list of its own and counts for nothing until it is
// worse than it was then, and stays so until it is over; what somebody has taken says so.
//
// What a condition means and when it begins is decided by judge, of facts that were read before: it asks nobody. A
// Watch is safe for concurrent use.
package health
