package wire

// How often a request is delivered without being answered.
const (
	// DefaultDeliveries is after how many deliveries a request is answered with CodeDeliveries instead of being run:
	// something in it kills its services, and in smaller pieces the node can find out what. JetStream counts every
	// delivery alike, those too that a service handed back because it was stopping, so the limit is over what a
	// deployment of many instances takes.
	DefaultDeliveries = 12
	// SuspectDeliveries is the same for a request that is a piece of one given up so.
	SuspectDeliveries = 3
	// MaxDeliver is after how many deliveries the server delivers a request no more, whoever its services are. A node
	// then removes it.
	MaxDeliver = 20
)
