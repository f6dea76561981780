package server

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// levelPath is where the level of the log is set.
const levelPath = "/debug/flags/v"

// level sets the level of the log, in upstream's words.
func (s *server) level(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		http.Error(w, "unsupported http method", http.StatusNotAcceptable)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if err != nil {
		http.Error(w, "error reading request body: "+err.Error(), http.StatusBadRequest)
		return
	}
	verbosity, err := strconv.ParseUint(string(body), 10, 31)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.host.LogLevel(int(verbosity))
	fmt.Fprintf(w, "successfully set klog.logging.verbosity to %d\n", verbosity)
}
