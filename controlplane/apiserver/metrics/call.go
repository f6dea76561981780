package metrics

import (
	"bufio"
	"net"
	"net/http"
)

// Unwrap is for http.ResponseController.
func (c *Call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// WriteHeader notes the status code.
func (c *Call) WriteHeader(code int) {
	if c.code < http.StatusOK { // one that is final stays
		c.code = code
	}
	c.ResponseWriter.WriteHeader(code)
}

// Write notes how much is sent.
func (c *Call) Write(b []byte) (int, error) {
	if c.code == 0 {
		c.code = http.StatusOK
	}
	n, err := c.ResponseWriter.Write(b)
	c.written += int64(n)
	return n, err
}

// Flush sends what was written.
func (c *Call) Flush() { _ = http.NewResponseController(c.ResponseWriter).Flush() }

// Hijack takes over the connection. Upstream, too, has then no status code.
func (c *Call) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(c.ResponseWriter).Hijack()
}
