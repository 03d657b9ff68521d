// Package modeltest has only tests: state machines that compare the store with models; a simulation of nodes,
// streams, services, a collector and operators on a real store (make simulate); and a storm, which runs everything
// concurrently. They take longest, and import all packages of the store.
//
// The simulation is tested by adding faults to the code. It found each of these after this number of histories:
//
//	a duplicate reply ends its slice late                    1
//	a view counts ready items twice                          1
//	a dry run leaves its changes                             1
//	rerun items stay accepted                                1
//	keys are taken while they are flushed                    1
//	a flush is recorded without its fence                    3
//	stopped lanes never end                                 10
//	a database rewind keeps sessions                        12
//	a rewind keeps the IDs of waiting slices                14
//	a barrier passes before its prerequisites have finished 15
//	work of a former leader is committed                    15
//	a cancelled and resumed run forgets its slices          21
//	an expired session claims                               23
//	flushes of lost nodes keep their keys                   25
//	a gate stays open while its prerequisites are rerun     26
//	a rerun requests invalid items again                    29
//	a rewind is handled twice, or keeps the epoch           31
//
// Not found within 60: a result of an optional step counts after that is left out, a split sends withdrawn items, a
// strict collector lets operations pass one that waits for its retry. Example tests cover these.
package modeltest
