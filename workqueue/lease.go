package workqueue

// Lease is the right to do leader work. The epoch grows with every change of hands; every leader transaction checks it.
type Lease struct {
	Session SessionID
	Epoch   int64
}
