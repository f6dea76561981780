package endpoints

import (
	"io"
	"log/slog"
	"net/http"

	"github.com/klauspost/compress/gzip"

	"knarr/controlplane/apiserver/watchcache"
)

// An appender appends a record as it is in a list.
type appender = func(b []byte, rec *watchcache.Record) ([]byte, error)

// sure ends the connection where a record cannot be written: the answer has begun.
func sure(add appender) func(b []byte, rec *watchcache.Record) []byte {
	return func(b []byte, rec *watchcache.Record) []byte {
		b, err := add(b, rec)
		if err != nil {
			slog.Error("list ended early", "err", err)
			panic(http.ErrAbortHandler)
		}
		return b
	}
}

// stream writes a long list bit by bit: nobody holds it as a whole. Add appends
// one record, and between two goes between.
func (c *call) stream(contentType string, head []byte, records []*watchcache.Record, between []byte, add appender, tail []byte) {
	zipped := acceptsGzip(c.r)
	writeHead(c.w, contentType, zipped)
	var to io.Writer = c.w
	if zipped {
		z := gzips.Get().(*gzip.Writer)
		z.Reset(c.w)
		to = z
		defer func() {
			z.Reset(io.Discard)
			gzips.Put(z)
		}()
	}
	buf := getBuffer()
	defer putBuffer(buf)
	buf.Grow(2 * writeBufferSize)
	item := sure(add)
	b := append(buf.AvailableBuffer(), head...)
	for i, rec := range records {
		if i > 0 {
			b = append(b, between...)
		}
		b = item(b, rec)
		if len(b) >= writeBufferSize {
			if _, err := to.Write(b); err != nil {
				return // the client is gone
			}
			b = b[:0]
		}
	}
	if _, err := to.Write(append(b, tail...)); err != nil {
		return
	}
	if z, ok := to.(*gzip.Writer); ok {
		z.Close() // an error is the client gone
	}
}

// writeHead starts an answer of unknown length.
func writeHead(w http.ResponseWriter, contentType string, gzip bool) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-cache, private")
	if gzip {
		h.Set("Content-Encoding", "gzip")
		h.Add("Vary", "Accept-Encoding")
	}
	w.WriteHeader(http.StatusOK)
}
