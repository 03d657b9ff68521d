// Package modeltest has tests only: state machines that compare the store with models of it; a simulation of nodes,
// streams, services and operators on a real store (make simulate); and storms, which do everything concurrently. They
// take longest, and import all of the store's packages.
package modeltest
