module knarr/internal/spdystream/interop

go 1.26.0

require (
	github.com/moby/spdystream v0.5.1
	knarr/internal/spdystream v0.0.0
)

// It is a module of the library's name; here the library itself has it.
replace knarr/internal/spdystream => ../
