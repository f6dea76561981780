package listener

import (
	"bufio"
	"encoding/binary"
	"errors"
)

// maxClientHello is the most that is read of a connection to find its server name: a
// ClientHello with large post-quantum keys and session tickets has some 4 kB.
const maxClientHello = 16 << 10

var errClientHello = errors.New("not a ClientHello of TLS")

// peekServerName is the server name that a TLS connection begins with, "" if it has
// none. Nothing is taken from the reader.
func peekServerName(r *bufio.Reader) (string, error) {
	var message []byte // the handshake message, of one or more records
	for at := 0; ; {
		header, err := r.Peek(at + 5)
		if err != nil {
			return "", err
		}
		header = header[at:]
		length := int(binary.BigEndian.Uint16(header[3:]))
		if header[0] != 22 || header[1] != 3 || length == 0 || length > 1<<14 {
			return "", errClientHello
		}
		all, err := r.Peek(at + 5 + length)
		if err != nil {
			return "", err
		}
		message = append(message, all[at+5:]...)
		at += 5 + length
		if len(message) < 4 {
			continue
		}
		if message[0] != 1 {
			return "", errClientHello
		}
		want := 4 + int(message[1])<<16 + int(binary.BigEndian.Uint16(message[2:]))
		if want > maxClientHello {
			return "", errClientHello
		}
		if len(message) >= want {
			return serverNameOf(message[4:want])
		}
	}
}

// A fieldReader takes fields from the begin of a message. After a field that is not
// whole everything is empty and bad.
type fieldReader struct {
	rest []byte
	bad  bool
}

func (f *fieldReader) take(n int) []byte {
	if n > len(f.rest) {
		f.bad, f.rest = true, nil
		return nil
	}
	field := f.rest[:n]
	f.rest = f.rest[n:]
	return field
}

// vector is a field that begins with its length in so many bytes.
func (f *fieldReader) vector(lengthBytes int) []byte {
	n := 0
	for _, b := range f.take(lengthBytes) {
		n = n<<8 | int(b)
	}
	return f.take(n)
}

func serverNameOf(hello []byte) (string, error) {
	f := fieldReader{rest: hello}
	f.take(2 + 32) // version, random
	f.vector(1)    // session
	f.vector(2)    // cipher suites
	f.vector(1)    // compression
	if f.bad {
		return "", errClientHello
	}
	if len(f.rest) == 0 {
		return "", nil // no extensions
	}
	extensions := fieldReader{rest: f.vector(2)}
	if f.bad {
		return "", errClientHello
	}
	for len(extensions.rest) > 0 {
		kind := extensions.take(2)
		body := extensions.vector(2)
		if extensions.bad {
			return "", errClientHello
		}
		if binary.BigEndian.Uint16(kind) != 0 {
			continue
		}
		outer := fieldReader{rest: body}
		names := fieldReader{rest: outer.vector(2)}
		for len(names.rest) > 0 {
			of := names.take(1)
			name := names.vector(2)
			if names.bad {
				return "", errClientHello
			}
			if of[0] == 0 {
				return string(name), nil
			}
		}
		if outer.bad {
			return "", errClientHello
		}
	}
	return "", nil
}
