package transport

import "net/http"

// A request's goroutine begins with a stack of 2 to 4 KiB and doubles it each
// time it is too small, which copies every frame that is there by then: a fifth
// of the CPU of a get. A first call with a large frame grows it at once, while
// there is next to nothing to copy.

// growForRead makes 16 KiB of stack. Its argument is never positive.
//
//go:noinline
func growForRead(never int) byte {
	if never > 0 {
		var frame [10 << 10]byte
		frame[never] = 1
		return frame[never/2]
	}
	return 0
}

// growForWrite makes 32 KiB of stack. Its argument is never positive.
//
//go:noinline
func growForWrite(never int) byte {
	if never > 0 {
		var frame [20 << 10]byte
		frame[never] = 1
		return frame[never/2]
	}
	return 0
}

// GrowStack is next with the stack that a request needs. It is the first of
// all handlers, for its own frame and those before it are copied.
func GrowStack(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPost, http.MethodPut, http.MethodPatch:
			growForWrite(0)
		default:
			growForRead(0)
		}
		next.ServeHTTP(w, r)
	})
}
