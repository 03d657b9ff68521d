// Package modeltest has tests only: state machines that compare the store with models of it; a simulation of nodes,
// streams, services and operators on a real store (make simulate); and storms, in which many do everything at once. They
// take longest, and need all rooms.
package modeltest
