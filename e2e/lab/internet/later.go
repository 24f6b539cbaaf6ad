package internet

import (
	"crypto/tls"
	"io"
	"net"
)

// sslRequest is what a PostgreSQL client begins with if it wants TLS
// (https://www.postgresql.org/docs/current/protocol-message-formats.html, SSLRequest).
var sslRequest = [8]byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}

// serveLater speaks TLS only after it was asked to, as PostgreSQL does, then it echoes.
func (n *Internet) serveLater(conn net.Conn) {
	defer conn.Close()
	var asked [8]byte
	if _, err := io.ReadFull(conn, asked[:]); err != nil || asked != sslRequest {
		return
	}
	if _, err := conn.Write([]byte("S")); err != nil {
		return
	}
	secure := tls.Server(conn, &tls.Config{GetCertificate: n.ca.certificate})
	io.Copy(secure, secure)
	secure.Close()
}
