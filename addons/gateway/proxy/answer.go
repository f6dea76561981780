package proxy

import (
	"io"
	"net/http"
	"strconv"
)

// statusClientClosed is how logs call a request whose client left before the answer.
const statusClientClosed = 499

// grpcStatus is the gRPC code for an answer that is not a backend's, as gRPC's mapping
// of HTTP codes has it.
func grpcStatus(status int) int {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		return 13 // internal
	case http.StatusUnauthorized:
		return 16 // unauthenticated
	case http.StatusForbidden:
		return 7 // permission denied
	case http.StatusNotFound:
		return 12 // unimplemented
	case http.StatusGatewayTimeout:
		return 4 // deadline exceeded
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable:
		return 14 // unavailable
	}
	return 2 // unknown
}

// answer is the gateway's own: a status and its name. gRPC clients get it in their form.
func (x *exchange) answer(status int) {
	h := x.w.Header()
	if x.grpc && status >= 400 {
		h["Content-Type"] = []string{"application/grpc"}
		h["Grpc-Status"] = []string{strconv.Itoa(grpcStatus(status))}
		h["Grpc-Message"] = []string{http.StatusText(status)}
		x.record.Status = status
		x.w.WriteHeader(http.StatusOK)
		return
	}
	text := http.StatusText(status)
	if text == "" {
		text = strconv.Itoa(status)
	}
	text += "\n"
	h["Content-Type"] = []string{"text/plain; charset=utf-8"}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	x.record.Status = status
	if status == http.StatusNoContent || status == http.StatusNotModified || status < 200 {
		delete(h, "Content-Type")
		x.w.WriteHeader(status)
		return
	}
	h["Content-Length"] = []string{strconv.Itoa(len(text))}
	x.w.WriteHeader(status)
	if x.r.Method != http.MethodHead {
		n, _ := io.WriteString(x.w, text)
		x.record.Sent = int64(n)
	}
}
