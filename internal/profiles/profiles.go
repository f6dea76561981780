// Package profiles answers /debug/pprof: the profiles that Go's runtime makes of the
// process, at upstream's paths. It reads the process and writes nothing.
package profiles

import (
	"net/http"
	"net/http/pprof"
)

// Root is where the profiles are.
const Root = "/debug/pprof"

// Handler serves Root and what is below it, to any method, as upstream does.
func Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(Root+"/", pprof.Index) // Root itself is sent there
	mux.HandleFunc(Root+"/cmdline", pprof.Cmdline)
	mux.HandleFunc(Root+"/profile", pprof.Profile)
	mux.HandleFunc(Root+"/symbol", pprof.Symbol)
	mux.HandleFunc(Root+"/trace", pprof.Trace)
	return mux
}
