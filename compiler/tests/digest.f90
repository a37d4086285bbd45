! SPDX-License-Identifier: Apache-2.0 OR MIT
!
! digest.f90: as digest.c, in Fortran: conjugate gradients over static arrays, as of NPB.
program digest
   implicit none
   integer, parameter :: n = 200000
   real(8), save :: x(n), r(n), p(n), q(n), d(n)
   real(8) :: rho, alpha, beta, before
   integer :: i, step

   do i = 1, n
      d(i) = 4d0 + mod(i, 7)
      r(i) = 1d0/i
      x(i) = 0d0
      p(i) = r(i)
   end do
   rho = dot_product(r, r)
   do step = 1, 20
      q(1) = d(1)*p(1) - p(2)
      do i = 2, n - 1
         q(i) = d(i)*p(i) - p(i - 1) - p(i + 1)
      end do
      q(n) = d(n)*p(n) - p(n - 1)
      alpha = rho/dot_product(p, q)
      x = x + alpha*p
      r = r - alpha*q
      before = rho
      rho = dot_product(r, r)
      beta = rho/before
      p = r + beta*p
   end do
   print '(2es26.16)', sum(x), rho
end program
