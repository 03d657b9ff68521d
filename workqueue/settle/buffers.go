package settle

import "sync"

// partBuffers are those of past recordings, some megabytes each.
type partBuffers struct{ sync.Pool }
