package proxy

import "sync"

// bufferSize is how much of a body is copied at once.
const bufferSize = 32 << 10

type bufferPool struct{ pool sync.Pool }

func newBufferPool() *bufferPool {
	return &bufferPool{sync.Pool{New: func() any { return new(make([]byte, bufferSize)) }}}
}

func (b *bufferPool) get() *[]byte  { return b.pool.Get().(*[]byte) }
func (b *bufferPool) put(p *[]byte) { b.pool.Put(p) }
