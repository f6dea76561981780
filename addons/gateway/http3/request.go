package http3

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/quic-go/quic-go"

	"knarr/internal/run"
)

// serveRequest serves the request of a stream.
func (c *conn) serveRequest(st *quic.Stream) {
	why := internalError
	defer func() {
		canceled := why != noError && st.Context().Err() != nil
		if st.CancelRead(quic.StreamErrorCode(why)); why != noError {
			st.CancelWrite(quic.StreamErrorCode(why))
		}
		st.ReleaseStreamCredit()
		c.end(canceled)
	}()
	_ = st.SetReadDeadline(time.Now().Add(headerTime))
	f := &frames{r: st}
	request, wrong := c.read(st, f)
	if wrong == tooLarge {
		st.CancelRead(quic.StreamErrorCode(excessiveLoad))
		answer := newResponse(st, false)
		if answer.WriteHeader(http.StatusRequestHeaderFieldsTooLarge); answer.Finish() == nil {
			why = noError
		}
		return
	}
	if why = wrong; wrong != noError {
		return
	}
	ctx, cancel := context.WithCancel(st.Context())
	defer cancel()
	request = request.WithContext(ctx)
	answer := newResponse(st, request.Method == http.MethodHead)
	if body, ok := request.Body.(*body); ok {
		body.answer, body.request = answer, request
	}
	if !answer.serve(c.server.config.Handler, request) || answer.Finish() != nil {
		why = internalError
	}
}

// serve calls the handler, and reports whether the answer is whole.
func (r *response) serve(h http.Handler, request *http.Request) (whole bool) {
	defer func() {
		if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
			run.Panicked("gateway HTTP/3 request", func() { panic(cause) })
		}
	}()
	h.ServeHTTP(r, request)
	return true
}

// tooLarge is no error of the protocol: it is answered.
const tooLarge code = 0

// read reads a request's head; why is noError, or what is wrong with it.
func (c *conn) read(st *quic.Stream, f *frames) (request *http.Request, why code) {
	kind, size, err := f.ofRequest()
	if err == nil && kind != frameHeaders {
		err = connectionError(frameUnexpected)
	}
	if of, ok := errors.AsType[connectionError](err); ok {
		c.close(code(of))
		return nil, code(of)
	}
	switch {
	case errors.Is(err, errSkipped):
		return nil, excessiveLoad
	case err != nil:
		return nil, requestIncomplete
	case size > maxHead:
		return nil, tooLarge
	}
	block := make([]byte, size)
	if _, err := io.ReadFull(st, block); err != nil {
		return nil, requestIncomplete
	}
	head, err := decode(block, maxHead)
	switch {
	case errors.Is(err, errTooLarge):
		return nil, tooLarge
	case errors.Is(err, errMalformed):
		return nil, messageError
	case err != nil:
		c.close(decompressionFailed)
		return nil, decompressionFailed
	}
	request, err = head.request()
	if err != nil {
		return nil, messageError
	}
	state := c.quic.ConnectionState().TLS
	request.TLS, request.RemoteAddr = &state, c.remote
	if ended, err := endsHere(st, request); err != nil {
		return nil, requestIncomplete
	} else if ended {
		if request.ContentLength > 0 {
			return nil, messageError
		}
		request.ContentLength = 0
		return request, noError
	}
	_ = st.SetReadDeadline(time.Time{})
	request.Body = newBody(st, f, request.ContentLength, request.Header)
	return request, noError
}

// endsHere says whether a request has no body. Of one whose method usually has none, and
// whose head does not say, the end is waited for: it is on its way.
func endsHere(st *quic.Stream, r *http.Request) (bool, error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete, http.MethodTrace, http.MethodConnect:
		if r.ContentLength > 0 {
			return false, nil
		}
	default:
		if r.ContentLength != 0 {
			return false, nil
		}
	}
	var b [1]byte
	_, err := st.Peek(b[:])
	if err == io.EOF {
		_, _ = st.Read(b[:]) // notes the end
		return true, nil
	}
	return false, err
}

// A body is that of a request.
type body struct {
	st      *quic.Stream
	frames  *frames
	request *http.Request
	answer  *response
	left    uint64 // of a frame of data
	length  int64  // as the head says, -1 if it does not
	got     int64
	expects bool  // the client waits for 100 before it sends
	err     error // once there is no more
}

func newBody(st *quic.Stream, f *frames, length int64, h http.Header) *body {
	return &body{st: st, frames: f, length: length, expects: expects(h)}
}

var errBody = errors.New("the body is not what its head says")

// Read reads what has arrived, or waits for more.
func (b *body) Read(p []byte) (int, error) {
	if b.expects {
		b.expects = false
		b.answer.goOn()
	}
	for b.err == nil {
		b.answer.bound(b.st)
		if b.left == 0 {
			b.err = b.next()
			continue
		}
		n, err := b.st.Read(p[:min(uint64(len(p)), b.left)])
		b.left -= uint64(n)
		b.got += int64(n)
		if b.length >= 0 && b.got > b.length {
			n, err = 0, errBody
		}
		if err != nil && (err != io.EOF || b.left > 0) {
			b.err = b.fail(err)
		}
		if n > 0 {
			return n, nil
		}
		if len(p) == 0 {
			break
		}
	}
	return 0, b.err
}

// next reads the head of the next frame of data, or the end.
func (b *body) next() error {
	kind, size, err := b.frames.ofRequest()
	if err == nil && kind == frameHeaders {
		err = b.trailers(size)
	}
	if err == nil {
		b.left = size
		return nil
	}
	if err == io.EOF {
		if b.length >= 0 && b.got != b.length {
			return b.fail(errBody)
		}
		return io.EOF
	}
	return b.fail(err)
}

// trailers reads those that the head announced, and the end after them.
func (b *body) trailers(size uint64) error {
	if size > maxHead {
		return errTooLarge
	}
	block := make([]byte, size)
	if _, err := io.ReadFull(b.st, block); err != nil {
		return broken(err)
	}
	fields, err := decode(block, maxHead)
	if err != nil {
		return err
	}
	if fields.pseudo != (pseudo{}) {
		return errMalformed
	}
	if _, _, err := b.frames.ofRequest(); err != io.EOF {
		return errMalformed
	}
	for name := range b.request.Trailer {
		b.request.Trailer[name] = fields.header[name]
	}
	return io.EOF
}

// fail ends a body that is not whole.
func (b *body) fail(err error) error {
	why := messageError
	if errors.Is(err, os.ErrDeadlineExceeded) {
		why = requestCancelled
	}
	b.st.CancelRead(quic.StreamErrorCode(why))
	return broken(err)
}

// Close ends a Read that waits, and gives up what was not read.
func (b *body) Close() error {
	b.st.CancelRead(quic.StreamErrorCode(noError))
	return nil
}
