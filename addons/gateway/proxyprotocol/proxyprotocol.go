// Package proxyprotocol reads and writes the header by which a proxy says for whom it
// opened a connection: the PROXY protocol, versions 1 and 2.
package proxyprotocol

import (
	"bufio"
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// MaxHeader is the most that a PROXY header may have: version 1 has at most 107
// bytes, version 2 a head of 16 and addresses and further values, of which load balancers send
// some hundred.
const MaxHeader = 4 << 10

var errHeader = errors.New("the connection does not begin with a PROXY header")

var signature = "\r\n\r\n\x00\r\nQUIT\n"

// Read takes a PROXY header of version 1 or 2 and returns the client's
// address, an invalid one if the header names none.
func Read(r *bufio.Reader) (source netip.AddrPort, err error) {
	head, err := r.Peek(6)
	if err != nil {
		return source, err
	}
	if string(head) == "PROXY " {
		return readText(r)
	}
	if head, err = r.Peek(16); err != nil {
		return source, err
	}
	if string(head[:12]) != signature || head[12]>>4 != 2 {
		return source, errHeader
	}
	command, family := head[12]&15, head[13]
	length := int(binary.BigEndian.Uint16(head[14:]))
	if command > 1 || 16+length > MaxHeader {
		return source, errHeader
	}
	all, err := r.Peek(16 + length)
	if err != nil {
		return source, err
	}
	body := all[16:]
	if command == 1 {
		size := 0
		switch family >> 4 {
		case 1:
			size = 4
		case 2:
			size = 16
		}
		if len(body) < 2*size+4 && size > 0 {
			return source, errHeader
		}
		if a, ok := netip.AddrFromSlice(body[:size]); ok {
			source = netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(body[2*size:]))
		}
	}
	_, err = r.Discard(16 + length)
	return source, err
}

// readText takes a header of version 1: one line of at most 107 bytes.
func readText(r *bufio.Reader) (source netip.AddrPort, err error) {
	const longest = 107
	for n := 8; ; n++ {
		line, err := r.Peek(n)
		if err != nil {
			return source, err
		}
		if line[n-1] != '\n' {
			if n == longest {
				return source, errHeader
			}
			continue
		}
		text, ok := strings.CutSuffix(string(line), "\r\n")
		if !ok {
			return source, errHeader
		}
		if _, err := r.Discard(n); err != nil {
			return source, err
		}
		return parseText(text)
	}
}

func parseText(line string) (source netip.AddrPort, err error) {
	fields := strings.Split(line, " ")
	if len(fields) >= 2 && fields[1] == "UNKNOWN" {
		return source, nil
	}
	if len(fields) != 6 || fields[1] != "TCP4" && fields[1] != "TCP6" {
		return source, errHeader
	}
	from, err := netip.ParseAddr(fields[2])
	to, err2 := netip.ParseAddr(fields[3])
	port, err3 := strconv.ParseUint(fields[4], 10, 16)
	_, err4 := strconv.ParseUint(fields[5], 10, 16)
	if errors.Join(err, err2, err3, err4) != nil || from.Zone() != "" || from.Is4() != (fields[1] == "TCP4") || to.Is4() != from.Is4() {
		return source, errHeader
	}
	return netip.AddrPortFrom(from.Unmap(), uint16(port)), nil
}

// Append appends the header that tells a backend whom a connection is for.
func Append(b []byte, version int, from, to netip.AddrPort) []byte {
	source, destination := from.Addr().Unmap(), to.Addr().Unmap()
	if source.IsValid() && destination.IsValid() && source.Is4() != destination.Is4() {
		source, destination = netip.AddrFrom16(source.As16()), netip.AddrFrom16(destination.As16())
	}
	if version == 1 {
		if !source.IsValid() || !destination.IsValid() {
			return append(b, "PROXY UNKNOWN\r\n"...)
		}
		family := "TCP6"
		if source.Is4() {
			family = "TCP4"
		}
		return append(b, "PROXY "+family+" "+source.String()+" "+destination.String()+" "+
			strconv.Itoa(int(from.Port()))+" "+strconv.Itoa(int(to.Port()))+"\r\n"...)
	}
	b = append(b, signature...)
	if !source.IsValid() || !destination.IsValid() {
		return append(b, 0x20, 0, 0, 0) // no client: the gateway itself
	}
	family := byte(0x21)
	if source.Is4() {
		family = 0x11
	}
	body := append(source.AsSlice(), destination.AsSlice()...)
	body = binary.BigEndian.AppendUint16(body, from.Port())
	body = binary.BigEndian.AppendUint16(body, to.Port())
	b = append(b, 0x21, family)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	return append(b, body...)
}
