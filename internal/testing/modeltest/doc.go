// Package modeltest has tests only: state machines that compare the store with models of it; a simulation of nodes,
// streams, services, a collector and operators on a real store (make simulate); and a storm, which does everything
// concurrently. They take longest, and import all of the store's packages.
//
// A simulation proves what it finds when it is put in. Each of these was found, after about so many histories:
//
//	a reply that came twice ends its slice late              1
//	a view counts what is ready twice                        1
//	a dry run leaves what it did                             1
//	what is run again stays accepted                         1
//	keys are taken while they are flushed                    1
//	a flush is recorded without its fence                    3
//	a gap in the database keeps sessions                    12
//	a gap keeps the IDs of slices that wait                 14
//	a barrier passes before all that it needs has ended     15
//	work of a leader of before is done                      15
//	stopped lanes never end                                 10
//	a cancelled run that goes on forgets its slices         21
//	a session that is over claims                           23
//	flushes of nodes that are gone keep their keys          25
//	a gate stays open when what it waits for is made again  26
//	a re-run asks about invalid items again                 29
//	a gap is passed twice, or keeps the epoch               31
//
// Not found within 60: a part of an optional step counts that is left out now, a split sends what was withdrawn, a
// strict collector lets operations pass one that waits for its next try. There are examples of these.
package modeltest
