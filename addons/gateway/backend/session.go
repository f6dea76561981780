package backend

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
)

// Session is the value of a client's session with this endpoint, the same on all nodes.
// It does not spell the address, and is only looked up among the endpoints that there
// are: a client can ask for nothing but one of them.
func (s *Set) Session(e *Endpoint) string { return session(s.name, e) }

func session(backend string, e *Endpoint) string {
	address := e.Address.Addr().As16()
	sum := sha256.Sum256(append(binary.BigEndian.AppendUint16(address[:], e.Address.Port()), backend...))
	return base64.RawURLEncoding.EncodeToString(sum[:15])
}

func sessions(backend string, of ...[]*Endpoint) map[string]*Endpoint {
	all := map[string]*Endpoint{}
	for _, list := range of {
		for _, e := range list {
			all[session(backend, e)] = e
		}
	}
	return all
}
