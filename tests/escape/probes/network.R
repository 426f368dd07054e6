# Attempts on the barrier `network`. `attempts.R` is put before it.

high <- 2^32
native(list("socket packet" = c(17, 3, 0), "socket alg" = c(38, 5, 0), "socket vsock" = c(40, 1, 0),
            "socket xdp" = c(44, 3, 0), "socket raw icmp" = c(2, 3, 1), "socket audit" = c(16, 3, 9),
            "socket packet, high bit" = c(high + 17, 3, 0), "socket alg, high bit" = c(high + 38, 5, 0),
            "socket vsock, high bit" = c(high + 40, 1, 0), "socket audit, high bit" = c(16, 3, high + 9),
            "socket ping" = c(2, 2, 1)))
